//! Limits beyond the context: clamped and reported, on all routes but Anthropic's.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, RateLimits};
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::time::Duration;

const CONTEXT: u64 = 512;
const HEADER: &str = "x-kvasir-clamped";

fn server() -> Server {
    Server::start(CacheKind::Radix, CONTEXT as u32, &[])
}

fn with(mut body: Value, field: &str, value: Value) -> Value {
    body[field] = value;
    body
}

/// The routes with their names of the maximum, and where the number of prompt tokens is in the answer.
fn routes() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let prompt = json!({"prompt": [20, 21, 22], "ignore_eos": true});
    let chat = json!({"messages": [{"role": "user", "content": "one two"}], "ignore_eos": true});
    vec![
        ("/v1/completions", prompt.clone(), "max_tokens", "/usage/prompt_tokens"),
        ("/v1/completions", prompt.clone(), "n_predict", "/usage/prompt_tokens"),
        ("/v1/chat/completions", chat.clone(), "max_tokens", "/usage/prompt_tokens"),
        ("/v1/chat/completions", chat, "max_completion_tokens", "/usage/prompt_tokens"),
        ("/v1/responses", json!({"input": "one two"}), "max_output_tokens", "/usage/input_tokens"),
        ("/completion", prompt, "n_predict", "/tokens_evaluated"),
    ]
}

#[test]
fn a_limit_beyond_the_context_is_clamped_and_reported() {
    let server = server();
    for (path, body, field, tokens) in routes() {
        let within = with(body.clone(), field, 5.into());
        assert_eq!(server.header(path, &within, HEADER), (200, None), "{path}");
        for most in [1_000_u64, 32_000, i32::MAX as u64] {
            let beyond = with(body.clone(), field, most.into());
            let (status, answer) = server.post(path, &beyond);
            let left = CONTEXT - answer.pointer(tokens).unwrap().as_u64().unwrap();
            assert_eq!(status, 200, "{path} {answer}");
            let header = Some(format!("{field}={left}"));
            assert_eq!(server.header(path, &beyond, HEADER), (200, header.clone()), "{path}");
            let streamed = with(beyond, "stream", true.into());
            assert_eq!(server.header(path, &streamed, HEADER), (200, header), "{path}");
        }
    }
}

#[test]
fn a_clamped_answer_ends_where_the_context_is_full() {
    let server = server();
    for (path, body, field, _) in routes().into_iter().filter(|(path, ..)| *path != "/v1/responses") {
        let (_, answer) = server.post(path, &with(body, field, 32_000.into()));
        let full = match path {
            "/completion" => {
                assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
                answer["tokens_evaluated"].as_u64().unwrap() + answer["tokens_predicted"].as_u64().unwrap()
            }
            _ => {
                assert_eq!(answer["choices"][0]["finish_reason"], "length", "{path}");
                answer["usage"]["total_tokens"].as_u64().unwrap()
            }
        };
        assert_eq!(full, CONTEXT, "{path}");
    }
}

#[test]
fn ollamas_limit_is_named_as_an_option() {
    let server = server();
    let options = |most: u32| json!({"options": {"num_predict": most}, "stream": false});
    let generate = |most| {
        let mut body = options(most);
        body["prompt"] = "one two".into();
        ("/api/generate", body)
    };
    let raw = |most| {
        let (path, mut body) = generate(most);
        body["raw"] = true.into();
        (path, body)
    };
    let chat = |most| {
        let mut body = options(most);
        body["messages"] = json!([{"role": "user", "content": "one two"}]);
        ("/api/chat", body)
    };
    let requests: [&dyn Fn(u32) -> (&'static str, Value); 3] = [&generate, &raw, &chat];
    for request in requests {
        let (path, body) = request(i32::MAX as u32);
        let (status, answer) = server.post(path, &body);
        let left = CONTEXT - answer["prompt_eval_count"].as_u64().unwrap();
        assert_eq!(status, 200, "{answer}");
        assert_eq!(server.header(path, &body, HEADER).1, Some(format!("options.num_predict={left}")));
        let (path, body) = request(2);
        assert_eq!(server.header(path, &body, HEADER), (200, None));
    }
}

#[test]
fn several_prompts_report_the_smallest_limit() {
    let body = json!({"prompt": [[20, 21], [20, 21, 22, 23], [20]], "max_tokens": 1000});
    assert_eq!(server().header("/v1/completions", &body, HEADER).1, Some("max_tokens=508".into()));
}

#[test]
fn the_generation_configs_limit_is_reported_too() {
    let server = Server::serving(|mut model| {
        model.facts.max_new_tokens = Some(7);
        model
    });
    let body = json!({"prompt": [20, 21, 22], "max_tokens": 9, "ignore_eos": true});
    assert_eq!(server.header("/v1/completions", &body, HEADER).1, Some("max_tokens=7".into()));
}

#[test]
fn a_minimum_beyond_the_context_is_refused() {
    let server = server();
    for limits in [json!({"min_tokens": 510, "max_tokens": 600}), json!({"min_tokens": 510})] {
        let mut body = json!({"prompt": [20, 21, 22]});
        body.as_object_mut().unwrap().extend(limits.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/completions", &body);
        let error = &answer["error"];
        assert_eq!((status, &error["param"]), (400, &json!("min_tokens")), "{error}");
        assert_eq!(error["code"], "context_length_exceeded");
    }
    let fits = json!({"prompt": [20, 21, 22], "min_tokens": 509, "max_tokens": 600});
    let (status, answer) = server.post("/v1/completions", &fits);
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(509)), "{answer}");
}

#[test]
fn anthropics_limit_beyond_the_context_is_refused() {
    let body = json!({
        "model": "tiny", "max_tokens": 600, "messages": [{"role": "user", "content": "one two"}],
    });
    let (status, answer) = server().post("/v1/messages", &body);
    let message = answer["error"]["message"].as_str().unwrap();
    assert_eq!(status, 400);
    assert!(message.starts_with("input length and `max_tokens` exceed context limit: "), "{message}");
}

#[test]
fn a_prompt_beyond_the_context_is_an_error_for_clients_of_both() {
    let server = server();
    let long = "one two ".repeat(600);
    let messages = json!([{"role": "user", "content": long}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": long, "max_tokens": 5})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/responses", json!({"input": long, "max_output_tokens": 600})),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{path}");
        assert_eq!(error["type"], "exceed_context_size_error", "{path}");
        let message = error["message"].as_str().unwrap();
        for words in ["exceeds the available context size", "maximum context length is 512 tokens"] {
            assert!(message.contains(words), "{path}: {message}");
        }
    }
    for (path, body) in
        [("/api/chat", json!({"messages": messages})), ("/api/generate", json!({"prompt": long}))]
    {
        let (status, answer) = server.post(path, &body);
        assert!(status == 400 && answer["error"].is_string(), "{path}: {answer}");
    }
}

#[test]
fn a_clamped_limit_is_what_rates_are_charged() {
    let rate_limits = RateLimits::parse(&["*:100,600".into()]).unwrap();
    let access = AccessControl { rate_limits, ..AccessControl::default() };
    let server = Server::behind(Toy::new(), CacheKind::Radix, 512, access, Duration::from_secs(3600));
    let body = json!({"prompt": [20, 21, 22], "max_tokens": 32_000, "ignore_eos": true});
    let left = server.header("/v1/completions", &body, "x-ratelimit-remaining-tokens");
    assert_eq!(left, (200, Some("88".into())));
}

#[test]
fn a_truncated_prompt_leaves_at_most_half_of_the_context() {
    let server = server();
    for (most, kept) in [(100, 412), (256, 256), (400, 256), (32_000, 256)] {
        let body = json!({
            "prompt": vec![20; 900], "truncate_prompt_tokens": -1, "max_tokens": most, "ignore_eos": true,
        });
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(kept)), "{answer}");
    }
}
