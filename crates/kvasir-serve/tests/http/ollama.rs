//! Ollama's API: lines, errors, aliases of the model, and bodies as `curl -d` sends them.

use super::server::{Server, with_facts};
use kvasir_kv::CacheKind;
use kvasir_serve::model::{Facts, Model};
use serde_json::{Value, json};

fn generate(extra: Value) -> Value {
    let mut body = json!({
        "model": "tiny:latest", "prompt": "one two", "raw": true,
        "options": {"temperature": 0, "num_predict": 12, "seed": 1},
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn streamed_lines_join_to_the_whole_answer() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let lines = server.lines("/api/generate", &generate(json!({})));
    let (last, pieces) = lines.split_last().unwrap();
    assert!(!pieces.is_empty() && pieces.iter().all(|line| line["done"] == false), "{lines:?}");
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["eval_count"]),
        (&json!(true), &json!("length"), &json!(12))
    );
    let streamed: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    let (status, whole) = server.post("/api/generate", &generate(json!({"stream": false})));
    assert_eq!((status, whole["response"].as_str()), (200, Some(streamed.as_str())));
    assert_eq!((&whole["model"], &whole["eval_count"]), (&json!("tiny:latest"), &json!(12)));
}

#[test]
fn durations_are_positive_even_of_one_token() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let one = generate(json!({"stream": false, "options": {"num_predict": 1}}));
    let (_, whole) = server.post("/api/generate", &one);
    assert_eq!(whole["eval_count"], 1);
    assert!(whole["eval_duration"].as_u64().unwrap() > 0, "{whole}");
}

#[test]
fn only_models_that_reason_think() {
    let chat = |server: &Server, think: Value| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({
            "model": "tiny", "messages": messages, "prompt": "hi", "think": think, "stream": false,
            "options": {"num_predict": 1},
        });
        ["/api/chat", "/api/generate"].map(|path| server.post(path, &body))
    };
    let plain = Server::serving(|model| {
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        Model { chat: model.chat.with_template(template).unwrap(), ..model }
    });
    let reasoning = Server::serving(|model| model);
    for think in [json!(true), json!("low"), json!("high")] {
        for (status, error) in chat(&plain, think.clone()) {
            assert_eq!((status, &error["error"]), (400, &json!("\"tiny\" does not support thinking")));
        }
        assert!(chat(&reasoning, think).iter().all(|(status, _)| *status == 200));
    }
    for think in [json!(false), json!(""), json!(null)] {
        for server in [&plain, &reasoning] {
            assert!(chat(server, think.clone()).iter().all(|(status, _)| *status == 200), "{think}");
        }
    }
}

#[test]
fn options_without_effect_on_embeddings_are_named() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = json!({"options": {"temperature": 0, "num_ctx": 9, "seed": null}});
    for path in ["/api/embed", "/api/embeddings"] {
        let names = server.ignored(path, &body).unwrap();
        assert_eq!(names, "options.temperature, options.num_ctx", "{path}");
    }
}

#[test]
fn without_a_limit_the_answer_ends_with_the_context() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = generate(json!({"stream": false, "options": {"temperature": 0}}));
    let (status, whole) = server.post("/api/generate", &body);
    assert_eq!(status, 200, "{whole}");
    assert!(whole["eval_count"].as_u64().unwrap() > 16, "{whole}");
}

#[test]
fn errors_are_one_text() {
    let server = Server::start(CacheKind::Radix, 512, &["secret"]);
    let (status, error) = server.send("POST", "/api/generate", "", "{}");
    assert_eq!((status, error["error"].is_string()), (401, true), "{error}");
    let other = generate(json!({"model": "other"})).to_string();
    let (status, error) = server.send("POST", "/api/generate", "secret", &other);
    assert_eq!(status, 404);
    assert_eq!(error["error"], "model 'other' not found");
    let (status, error) = server.send("POST", "/api/pull", "secret", r#"{"model": "x"}"#);
    assert_eq!((status, error["error"].is_string()), (404, true), "{error}");
}

#[test]
fn an_empty_request_loads_the_model() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for path in ["/api/chat", "/api/generate"] {
        for (body, reason) in [
            (json!({"model": "tiny"}), "load"),
            (json!({"model": "tiny", "keep_alive": "5m"}), "load"),
            (json!({"model": "tiny", "keep_alive": 0}), "unload"),
        ] {
            let (status, line) = server.post(path, &body);
            assert_eq!(
                (status, &line["done"], &line["done_reason"]),
                (200, &json!(true), &json!(reason)),
                "{path}"
            );
        }
    }
    for (path, input, vectors) in [
        ("/api/embed", json!({"input": ""}), "embeddings"),
        ("/api/embed", json!({"input": []}), "embeddings"),
        ("/api/embed", json!({}), "embeddings"),
        ("/api/embeddings", json!({"prompt": ""}), "embedding"),
        ("/api/embeddings", json!({}), "embedding"),
    ] {
        let (status, answer) = server.post(path, &input);
        assert_eq!((status, &answer[vectors]), (200, &json!([])), "{path} {input}");
        let mut other = input;
        other["model"] = "other".into();
        let (status, error) = server.post(path, &other);
        assert_eq!((status, &error["error"]), (404, &json!("model 'other' not found")), "{path}");
    }
}

#[test]
fn the_model_is_listed_and_described() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for path in ["/api/tags", "/api/ps"] {
        let (status, list) = server.send("GET", path, "", "");
        assert_eq!((status, &list["models"][0]["name"]), (200, &json!("tiny")), "{path}");
        let model = &list["models"][0];
        let digest = model["digest"].as_str().unwrap();
        assert!(
            digest.len() == 64 && digest.as_bytes().chunks(12).all(|part| part.iter().any(|c| *c != b'0'))
        );
        assert!(!model["modified_at"].as_str().unwrap().starts_with("1970"), "{model}");
    }
    let (status, shown) = server.post("/api/show", &json!({"model": "tiny:latest"}));
    assert_eq!((status, &shown["capabilities"][0]), (200, &json!("completion")));
    assert_eq!(server.send("GET", "/api/version", "", "").0, 200);
}

#[test]
fn bodies_of_any_type_pass_unless_a_page_sends_them() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = generate(json!({"stream": false}));
    assert_eq!(server.post_with("/api/generate", &[form], &body), 200);
    assert_eq!(server.post_with("/api/generate", &[form, ("origin", "https://a.example")], &body), 415);
    assert_eq!(server.post_with("/v1/completions", &[form], &json!({"prompt": "a"})), 415);
}

#[test]
fn errors_name_the_field_as_sent() {
    let server = Server::serving(|model| with_facts(Facts { hidden: Some(8), ..model.facts }));
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (extra, field) in [
        (json!({"options": {"repeat_penalty": 0}}), "options.repeat_penalty"),
        (json!({"options": {"temperature": "warm"}}), "options.temperature"),
        (json!({"options": {"stop": [1]}}), "options.stop"),
        (json!({"format": {"type": "nonsense"}}), "format"),
    ] {
        for mut body in [json!({"messages": messages}), generate(json!({})), generate(json!({"raw": false}))]
        {
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let path = if body.get("prompt").is_some() { "/api/generate" } else { "/api/chat" };
            let (status, error) = server.post(path, &body);
            let text = error["error"].as_str().unwrap();
            assert!(status == 400 && text.contains(&format!("`{field}`")), "{path}: {text}");
        }
    }
}

#[test]
fn the_last_message_of_the_assistant_is_continued() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let messages = json!([{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]);
    let request = json!({
        "messages": messages, "continue_final_message": true, "max_tokens": 12, "temperature": 0, "seed": 1,
    });
    let (_, expected) = server.post("/v1/chat/completions", &request);
    let options = json!({"temperature": 0, "num_predict": 12, "seed": 1});
    let (status, whole) =
        server.post("/api/chat", &json!({"messages": messages, "stream": false, "options": options}));
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    assert_eq!(whole["message"]["content"], expected["choices"][0]["message"]["content"]);
}

#[test]
fn unknown_fields_of_calls_are_named() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let call = json!({"id": "x", "bar": 1, "function": {"name": "f", "arguments": {}, "baz": 2}});
    let body = json!({
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x", "content": "two"},
        ],
        "options": {"num_predict": 2},
    });
    let names = server.ignored("/api/chat", &body).unwrap();
    assert_eq!(names, "messages[].tool_calls[].bar, messages[].tool_calls[].function.baz");
    let mut stray = body;
    stray["messages"][2]["tool_call_id"] = "y".into();
    let (status, error) = server.post("/api/chat", &stray);
    let text = error["error"].as_str().unwrap();
    assert!(status == 400 && text.contains("`messages[2].tool_call_id`"), "{text}");
}
