//! Images over HTTP, in all chat APIs: those of earlier messages become notes, one of the newest
//! message is refused by a sentence that names the model.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

const URL: &str = "data:image/png;base64,AA==";

/// Path, body, and name of the ignored field, of a conversation whose first message has an image.
/// The last message is the user's, unless that with the image is the only one.
fn conversations(is_newest: bool) -> [(&'static str, Value, &'static str); 4] {
    let text = json!({"role": "user", "content": "hi"});
    let later = |first: Value| {
        let answer = json!({"role": "assistant", "content": "so"});
        if is_newest { json!([first]) } else { json!([first, answer, text]) }
    };
    let with = |part: Value| later(json!({"role": "user", "content": [part]}));
    let chat = with(json!({"type": "image_url", "image_url": {"url": URL}}));
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AA=="});
    let anthropic = with(json!({"type": "image", "source": source}));
    let items = with(json!({"type": "input_image", "image_url": URL}));
    let ollama = later(json!({"role": "user", "content": "a", "images": ["AA=="]}));
    [
        (
            "/v1/chat/completions",
            json!({"messages": chat, "max_tokens": 2}),
            "messages[].content[].image_url",
        ),
        (
            "/v1/messages",
            json!({"model": "tiny", "messages": anthropic, "max_tokens": 2}),
            "messages[].content[].image",
        ),
        ("/v1/responses", json!({"input": items, "max_output_tokens": 2}), "input[].content[].input_image"),
        (
            "/api/chat",
            json!({"model": "tiny", "messages": ollama, "stream": false, "options": {"num_predict": 2}}),
            "messages[].images",
        ),
    ]
}

#[test]
fn earlier_images_are_named_and_the_newest_refused() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for (path, body, name) in conversations(false) {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!(server.ignored(path, &body).as_deref(), Some(name), "{path}");
    }
    for (path, body, _) in conversations(true) {
        let (status, answer) = server.post(path, &body);
        let text = answer.to_string();
        assert_eq!(status, 400, "{path}: {text}");
        assert!(text.contains("could not process image, since the model `tiny` reads text only"), "{text}");
    }
    let generate = json!({"model": "tiny", "prompt": "a", "images": ["AA=="]});
    let (status, answer) = server.post("/api/generate", &generate);
    let text = answer.to_string();
    assert!(status == 400 && text.contains("`images`") && text.contains("`tiny`"), "{text}");
}

#[test]
fn a_stored_history_may_hold_an_image() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let image = json!({"role": "user", "content": [{"type": "input_image", "image_url": URL}]});
    let text = json!({"role": "user", "content": "hi"});
    let body = json!({"input": [image, text], "max_output_tokens": 2});
    let (status, first) = server.post("/v1/responses", &body);
    assert_eq!(status, 200, "{first}");
    let next = json!({"input": "and?", "previous_response_id": first["id"], "max_output_tokens": 2});
    assert_eq!(server.ignored("/v1/responses", &next).as_deref(), Some("input[].content[].input_image"));
}
