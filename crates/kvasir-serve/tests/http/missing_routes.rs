//! Paths and methods without a route: what the error says, in the format of the client's API.

use super::server::Server;
use kvasir_kv::CacheKind;

#[test]
fn errors_have_the_format_of_the_path() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let words = |path: &str, place: &str| {
        let (status, answer) = server.send("POST", path, "", "{}");
        let text = answer.pointer(place).and_then(|text| text.as_str()).map(str::to_owned);
        (status, text.unwrap_or_else(|| panic!("{path}: {answer}")))
    };
    for (path, place, named) in [
        ("/conversations", "/error/message", "`POST /v1/conversations`"),
        ("/v1/audio/speech", "/error/message", "audio is not offered"),
        ("/v1/messages/batches", "/error/message", "POST /v1/messages"),
        ("/api/blobs/x", "/error", "not created over HTTP"),
        ("/lora-adapters", "/error/message", "without adapters"),
    ] {
        let (status, text) = words(path, place);
        assert!(status == 404 && text.contains(named) && text.contains(path), "{path}: {text}");
    }
    let (_, anthropic) = server.send("GET", "/v1/complete", "", "");
    assert_eq!(anthropic["type"], "error");
    let (_, llama) = server.send("GET", "/lora-adapters", "", "");
    assert_eq!(llama["error"]["code"], 404);
}

#[test]
fn a_wrong_method_names_the_right_ones() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for (method, path, allow) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("GET", "/v1/messages", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/sessions", "GET, HEAD, POST"),
        ("PATCH", "/v1/sessions/s1", "GET, HEAD, DELETE"),
        ("GET", "/api/chat", "POST"),
    ] {
        let (status, headers) = server.head(method, path, &[]);
        assert_eq!((status, headers["allow"].to_str().unwrap()), (405, allow), "{method} {path}");
        let (_, answer) = server.send(method, path, "", "");
        let (text, taken) = (answer.to_string(), allow.replace(", HEAD", "").replace(", ", " and "));
        assert!(text.contains(&format!("takes {taken}, not {method}")), "{text}");
    }
}

#[test]
fn a_wrong_model_names_the_served_one() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = |path: &str| match path {
        "/v1/responses" => serde_json::json!({"model": "gpt-x", "input": "hi"}),
        "/v1/embeddings" => serde_json::json!({"model": "gpt-x", "input": "hi"}),
        "/v1/completions" => serde_json::json!({"model": "gpt-x", "prompt": "hi"}),
        _ => {
            let messages = [serde_json::json!({"role": "user", "content": "hi"})];
            serde_json::json!({"model": "gpt-x", "max_tokens": 2, "messages": messages})
        }
    };
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/api/chat",
    ] {
        let (status, answer) = server.post(path, &body(path));
        let text = answer.to_string();
        assert!(status == 404 && text.contains("gpt-x") && text.contains("`tiny`"), "{path}: {text}");
        assert!(text.contains("--model-name"), "{path}: {text}");
    }
    let (status, answer) = server.send("GET", "/v1/models/gpt-x", "", "");
    assert!(status == 404 && answer.to_string().contains("`tiny`"), "{answer}");
}
