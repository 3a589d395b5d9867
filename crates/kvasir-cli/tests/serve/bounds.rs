//! Server-side bounds on answers: generation config, reasoning budgets, features absent on the
//! simulated device.

use super::server::{CHAT, COMPLETIONS, JSON, Server, chat, model};
use serde_json::{Value, json};
use std::fs;

#[test]
fn a_model_may_bound_its_answers() {
    let folder = model("cap");
    let path = folder.join("generation_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["max_new_tokens"] = 5.into();
    fs::write(&path, config.to_string()).unwrap();
    let server = Server::of_model(folder, &[], &[]);
    let tokens = |extra: Value| {
        let (status, answer) = server.post(CHAT, &chat(extra));
        assert_eq!(
            (status, answer["choices"][0]["finish_reason"].as_str()),
            (200, Some("length")),
            "{answer}"
        );
        answer["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!(tokens(json!({"ignore_eos": true, "max_tokens": null})), 5);
    assert_eq!(tokens(json!({"ignore_eos": true, "max_tokens": 12})), 5);
    assert_eq!(tokens(json!({"ignore_eos": true, "max_tokens": 3})), 3);
    for path in [CHAT, COMPLETIONS] {
        let body = json!({"max_new_tokens": 3}).to_string();
        let answer = server.exchange("POST", path, JSON, &body);
        assert_eq!((answer.status, answer.param().as_str()), (400, "max_new_tokens"));
        assert!(answer.body.contains("`max_tokens`"), "{}", answer.body);
    }
}

#[test]
fn reasoning_budgets_hold_or_are_refused() {
    let server = Server::start("budget", &[]);
    let (status, answer) = server.post(CHAT, &chat(json!({"thinking_token_budget": 3})));
    assert_eq!(status, 200, "{answer}");
    let message = json!({"model": "tiny", "max_tokens": 20, "thinking": {"type": "enabled", "budget_tokens": 4},
        "messages": [{"role": "user", "content": "hi"}]});
    let (status, answer) = server.post("/v1/messages", &message);
    assert_eq!(status, 200, "{answer}");
    // Multi-token markers cannot be forced.
    let several = Server::start("budget-several", &["--reasoning-parser", "mistral"]);
    for (path, body, param) in [
        (CHAT, chat(json!({"thinking_token_budget": 3})), "thinking_token_budget"),
        ("/v1/messages", message, "thinking.budget_tokens"),
    ] {
        let answer = several.exchange("POST", path, JSON, &body.to_string());
        assert_eq!((answer.status, answer.param().as_str()), (400, param), "{}", answer.body);
    }
}

#[test]
fn a_device_that_computes_nothing_says_so() {
    let server = Server::start("computes", &["--backend", "sim"]);
    for (path, body) in [
        (CHAT, chat(json!({"logprobs": true}))),
        (CHAT, chat(json!({"response_format": {"type": "json_object"}}))),
        (CHAT, chat(json!({"thinking_token_budget": 3}))),
        (COMPLETIONS, json!({"prompt": "a", "max_tokens": 3, "logprobs": 1})),
        (COMPLETIONS, json!({"prompt": "a", "max_tokens": 3, "prompt_logprobs": 1})),
        ("/v1/embeddings", json!({"input": "a"})),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!(
            (status, answer["error"]["code"].as_str()),
            (501, Some("not_offered")),
            "{body}: {answer}"
        );
    }
    assert_eq!(server.post(CHAT, &chat(json!({}))).0, 200);
}

#[test]
fn response_events_are_ordered_and_numbered() {
    let server = Server::start("responses", &["--reasoning-parser", "none"]);
    let body =
        json!({"input": "hello", "max_output_tokens": 12, "stream": true, "temperature": 0}).to_string();
    let text = server.exchange("POST", "/v1/responses", JSON, &body).body;
    let events: Vec<(&str, Value)> = text
        .split("\n\n")
        .filter_map(|event| {
            let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
            Some((name, serde_json::from_str(data).unwrap()))
        })
        .collect();
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!(
            (event["type"].as_str(), event["sequence_number"].as_u64()),
            (Some(*name), Some(number as u64))
        );
    }
    let mut names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
    names.dedup();
    let ended = events.last().unwrap().0;
    assert!(["response.completed", "response.incomplete"].contains(&ended), "{ended}");
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        ended,
    ];
    assert_eq!(names, order);
    let printed: String = events.iter().filter_map(|(_, event)| event["delta"].as_str()).collect();
    let whole = &events.last().unwrap().1["response"];
    assert_eq!(whole["output"][0]["content"][0]["text"], printed);
    for (field, value) in [("previous_response_id", json!("resp_1")), ("conversation", json!("conv_1"))] {
        let mut body = json!({"input": "hello"});
        body[field] = value;
        let answer = server.exchange("POST", "/v1/responses", JSON, &body.to_string());
        assert_eq!((answer.status, answer.param().as_str()), (400, field));
    }
}

#[test]
fn responses_are_stored_and_continued() {
    let server = Server::start("stored", &["--kv-capacity", "4096"]);
    let respond = |extra: Value| {
        let mut body = json!({"model": "tiny", "max_output_tokens": 8, "temperature": 0, "input": "hello"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/responses", &body)
    };
    let (status, first) = respond(json!({}));
    assert_eq!((status, &first["store"], &first["previous_response_id"]), (200, &json!(true), &Value::Null));
    let id = first["id"].as_str().unwrap();
    let path = format!("/v1/responses/{id}");
    let get = |path: &str| {
        let answer = server.exchange("GET", path, "", "");
        (answer.status, answer.json())
    };
    assert_eq!(get(&path), (200, first.clone()));
    let content = json!([{"type": "input_text", "text": "hello"}]);
    assert_eq!(get(&format!("{path}/input_items")).1["data"][0]["content"], content);
    // Continuing equals sending everything again.
    let (_, second) = respond(json!({"input": "and then?", "previous_response_id": id}));
    let mut items = vec![json!({"role": "user", "content": "hello"})];
    items.extend(first["output"].as_array().unwrap().clone());
    items.push(json!({"role": "user", "content": "and then?"}));
    let (_, again) = respond(json!({"input": items, "store": false}));
    let text = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    assert_eq!(
        (text(&second), &second["usage"]["input_tokens"]),
        (text(&again), &again["usage"]["input_tokens"])
    );
    assert_eq!(
        get(&format!("/v1/responses/{}", again["id"].as_str().unwrap())).0,
        404,
        "it was not to be stored"
    );
    let (_, counted) =
        server.post("/v1/responses/input_tokens", &json!({"input": "and then?", "previous_response_id": id}));
    assert_eq!(counted["input_tokens"], second["usage"]["input_tokens"]);
    let deleted = server.exchange("DELETE", &path, "", "");
    assert_eq!((deleted.status, deleted.json()["deleted"].clone()), (200, json!(true)));
    assert_eq!(get(&path).0, 404);
    let (status, error) = respond(json!({"previous_response_id": id}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("previous_response_id")));
}

#[test]
fn truncation_drops_the_oldest_messages() {
    let server = Server::start("truncation", &["--max-model-len", "128"]);
    let items: Vec<Value> = (0..40)
        .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": format!("message {i}")}))
        .chain([json!({"role": "user", "content": "the last one"})])
        .collect();
    let respond = |truncation: &str| {
        let body = json!({"model": "tiny", "max_output_tokens": 8, "input": items, "truncation": truncation});
        server.post("/v1/responses", &body)
    };
    assert_eq!(respond("disabled").0, 400);
    let (status, response) = respond("auto");
    assert_eq!((status, &response["truncation"]), (200, &json!("auto")), "{response}");
    assert!(response["usage"]["input_tokens"].as_u64().unwrap() > 40, "{response}");
}
