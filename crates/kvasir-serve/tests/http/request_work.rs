//! CPU-bound request work on the work pool: client templates, tokenization, rate limits.

use crate::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, RateLimits};
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::time::Duration;

const NESTED: &str = "{% for i in range(4000) %}{% for j in range(4000) %}{% endfor %}{% endfor %}";

fn messages() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

#[test]
fn a_clients_template_has_little_fuel() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = json!({"messages": messages(), "max_tokens": 1, "chat_template": NESTED});
    for path in ["/v1/chat/completions", "/apply-template", "/v1/chat/completions/input_tokens"] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (400, Some("chat_template")), "{path}: {answer}");
        // A hundredth of that of a model's template, and a share of the input.
        let steps: u64 =
            error["message"].as_str().unwrap().split(' ').find_map(|word| word.parse().ok()).unwrap();
        assert!((200_000..201_000).contains(&steps), "{path}: {answer}");
    }
}

#[test]
fn a_clients_template_is_rendered_once() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    // A model's template that leaves out a late system message is rendered again without one.
    let late = json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]);
    let template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let body = json!({"messages": late, "chat_template": template});
    assert_eq!(server.post("/apply-template", &body), (200, json!({"prompt": "a"})));
}

#[test]
fn repeated_arguments_do_not_outgrow_a_body() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "x".repeat(1 << 20)}});
    let template = "{% for i in range(1000) %}{{ messages[0].tool_calls[0].function.arguments }}{% endfor %}";
    let body = json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}], "chat_template": template});
    let (status, answer) = server.post("/apply-template", &body);
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("chat_template")), "{answer}");
}

#[test]
fn texts_beyond_the_working_memory_are_not_tokenized() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for (path, field) in [("/tokenize", "prompt"), ("/tokenize", "content")] {
        let (status, answer) = server.post(path, &json!({field: "!".repeat(7 << 20), "with_pieces": true}));
        let error = &answer["error"];
        let expected = (400, Some(field), Some("context_length_exceeded"));
        assert_eq!((status, error["param"].as_str(), error["code"].as_str()), expected, "{answer}");
    }
}

#[test]
fn every_request_with_a_body_counts_toward_the_rate() {
    let paths = [
        ("/tokenize", json!({"prompt": "a"})),
        ("/detokenize", json!({"tokens": [1]})),
        ("/apply-template", json!({"messages": messages(), "chat_template": "a"})),
        ("/v1/messages/count_tokens", json!({"messages": messages()})),
        ("/v1/chat/completions/input_tokens", json!({"messages": messages()})),
        ("/v1/sessions", json!({})),
        ("/page/math", json!({"items": [{"latex": "x"}]})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
    ];
    for (path, body) in paths {
        let rate_limits = RateLimits::parse(&["*:1,1000".into()]).unwrap();
        let access = AccessControl { rate_limits, ..AccessControl::default() };
        let server = Server::behind(Toy::new(), CacheKind::Radix, 512, access, Duration::from_secs(3600));
        assert_ne!(server.post(path, &body).0, 429, "{path}");
        assert_eq!(server.post(path, &body).0, 429, "{path}");
    }
}
