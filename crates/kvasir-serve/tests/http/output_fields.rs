//! Fields that shape the output: ids, stop sequences in the output, truncated prompts.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn body(extra: Value) -> Value {
    let mut body = json!({"prompt": [20, 21, 22], "temperature": 0, "ignore_eos": true, "max_tokens": 12});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn ids_of_prompt_and_answer_are_returned_on_request() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (_, whole) = server.post("/v1/completions", &body(json!({"return_token_ids": true})));
    let choice = &whole["choices"][0];
    assert_eq!(ids(&choice["prompt_token_ids"]), [20, 21, 22]);
    let answer = ids(&choice["token_ids"]);
    assert_eq!(answer.len(), 12);
    let streamed = server.events("/v1/completions", &body(json!({"return_token_ids": true, "stream": true})));
    let parts = streamed.iter().filter(|event| event["choices"][0].get("token_ids").is_some());
    assert_eq!(parts.flat_map(|event| ids(&event["choices"][0]["token_ids"])).collect::<Vec<_>>(), answer);
    let (_, text) = server.post("/detokenize", &json!({"tokens": answer}));
    assert_eq!(text["prompt"], choice["text"]);
    let (_, plain) = server.post("/v1/completions", &body(json!({})));
    assert!(plain["choices"][0].get("token_ids").is_none());
    assert_eq!(plain["choices"][0]["prompt_logprobs"], Value::Null);
}

#[test]
fn the_stop_sequence_may_stay_in_the_output() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let text = |extra: Value| {
        let (_, whole) = server.post("/v1/completions", &body(extra));
        whole["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let whole = text(json!({}));
    let stop: String = whole.chars().skip(3).take(2).collect();
    let cut = text(json!({"stop": stop}));
    assert_eq!(text(json!({"stop": stop, "include_stop_str_in_output": true})), cut + &stop);
}

#[test]
fn truncated_prompts_keep_their_end() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let complete = |extra: Value| server.post("/v1/completions", &body(extra));
    let (_, cut) = complete(json!({"prompt": [90, 91, 20, 21, 22], "truncate_prompt_tokens": 3}));
    let (_, own) = complete(json!({}));
    assert_eq!(
        (&cut["choices"][0]["text"], &cut["usage"]["prompt_tokens"]),
        (&own["choices"][0]["text"], &json!(3))
    );
    let long: Vec<u32> = (0..2000).map(|i| 20 + i % 100).collect();
    assert_eq!(complete(json!({"prompt": long, "truncate_prompt_tokens": -1})).0, 200);
    assert_eq!(complete(json!({"prompt": long})).0, 400);
}

#[test]
fn running_usage_is_in_every_chunk() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let options =
        json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let events = server.events("/v1/completions", &body(options));
    assert!(events.iter().all(|event| event["usage"]["prompt_tokens"] == 3), "{events:?}");
}

#[test]
fn limits_of_nothing_are_refused_by_name() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for field in ["n_predict", "truncate_prompt_tokens"] {
        let mut body = json!({"prompt": [20, 21, 22], "ignore_eos": true});
        body[field] = 0.into();
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
}

#[test]
fn an_empty_template_is_the_models() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let prompt = |template: Value| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        server.post("/apply-template", &json!({"messages": messages, "chat_template": template})).1
    };
    assert_eq!(prompt("".into()), prompt(Value::Null));
    assert_eq!(prompt("{{ messages[0].content }}".into()), json!({"prompt": "hi"}));
}

#[test]
fn templates_get_the_date_unless_a_request_sets_it() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let prompt = |kwargs: Value| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let template = "{{ date_string == strftime_now('%d %b %Y') }} {{ datetime }} {{ date_string }}";
        let body = json!({"messages": messages, "chat_template": template, "chat_template_kwargs": kwargs});
        server.post("/apply-template", &body).1["prompt"].as_str().unwrap().to_owned()
    };
    let today = prompt(json!({}));
    let words: Vec<&str> = today.split(' ').collect();
    let [same, month, day, year, dates @ ..] = &words[..] else { panic!("{today}") };
    assert_eq!((*same, dates), ("True", &[*day, *month, *year][..]));
    let own = json!({"date_string": "26 Jul 2024", "datetime": "then"});
    assert_eq!(prompt(own), "False then 26 Jul 2024");
}

#[test]
fn streams_return_the_ids_of_their_prompts() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let extra = json!({"prompt": [[20, 21], [22]], "n": 2, "return_token_ids": true, "stream": true});
    for echo in [false, true] {
        let mut body = body(extra.clone());
        body["echo"] = echo.into();
        let events = server.events("/v1/completions", &body);
        for index in 0..4 {
            let mut chunks = events.iter().map(|event| &event["choices"][0]);
            let mut own = chunks.by_ref().filter(|choice| choice["index"] == index);
            let expected = if index < 2 { json!([20, 21]) } else { json!([22]) };
            assert_eq!(own.next().unwrap()["prompt_token_ids"], expected);
            assert!(own.all(|choice| choice.get("prompt_token_ids").is_none()));
        }
    }
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": messages, "max_tokens": 3, "return_token_ids": true});
    let (status, whole) = server.post("/v1/chat/completions", &chat);
    assert_eq!(status, 200, "{whole}");
    let mut streamed = chat;
    streamed["stream"] = true.into();
    let events = server.events("/v1/chat/completions", &streamed);
    assert_eq!(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert!(events[1..].iter().all(|event| event.get("prompt_token_ids").is_none()));
    assert!(events.iter().all(|event| event["choices"][0].get("prompt_token_ids").is_none()));
}

#[test]
fn a_format_beside_a_required_call_is_no_error() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let schema = json!({"schema": {"type": "object"}});
    for choice in [json!("required"), tool.clone()] {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
        body["tool_choice"] = choice.clone();
        // The toy device computes no logits, so the call itself is refused.
        let (status, without) = server.post("/v1/chat/completions", &body);
        for (name, format) in [
            ("response_format", json!({"type": "json_object"})),
            ("response_format", json!({"type": "json_schema", "json_schema": schema})),
            ("regex", json!("a+")),
        ] {
            let mut body = body.clone();
            body[name] = format;
            assert_eq!(server.post("/v1/chat/completions", &body), (status, without.clone()), "{name}");
        }
    }
}
