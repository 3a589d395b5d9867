//! `--context-shift`: answers that fill the context go on, on llama.cpp's and Ollama's routes only.

use super::server::Server;
use serde_json::{Value, json};

fn server(context_shift: bool) -> Server {
    Server::serving(|mut model| {
        model.facts.context_shift = context_shift;
        model
    })
}

fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": vec![20; 300], "temperature": 0, "ignore_eos": true, "n_predict": 900});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The tokens of `/completion`'s answer.
fn tokens(server: &Server, extra: Value) -> Vec<Value> {
    let (status, answer) = server.post("/completion", &completion(extra));
    assert_eq!(status, 200, "{answer}");
    answer["tokens"].as_array().unwrap().clone()
}

#[test]
fn a_completion_goes_on_when_its_context_is_full() {
    let server = server(true);
    let (status, answer) = server.post("/completion", &completion(json!({})));
    assert_eq!((status, &answer["tokens_predicted"]), (200, &json!(900)), "{answer}");
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
    assert_eq!(server.header("/completion", &completion(json!({})), "x-kvasir-clamped").1, None);
    let events = server.events("/completion", &completion(json!({"stream": true})));
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!((&answer["content"], &events.last().unwrap()["truncated"]), (&json!(text), &json!(true)));
    let (_, short) = server.post("/completion", &completion(json!({"n_predict": 212})));
    assert_eq!((&short["tokens_predicted"], &short["truncated"]), (&json!(212), &json!(true)), "just full");
    let (_, short) = server.post("/completion", &completion(json!({"n_predict": 211})));
    assert_eq!(short["truncated"], json!(false));
}

#[test]
fn remaining_tokens_are_recomputed_after_the_kept_prefix() {
    let server = server(true);
    let prompt: Vec<Value> = (0..300).map(|i| json!(20 + i % 9)).collect();
    for (keep, kept) in [(json!(100), 100), (json!(-1), 300), (json!(0), 0), (Value::Null, 0)] {
        let same = json!({"prompt": prompt, "n_keep": keep, "return_tokens": true});
        let all = tokens(&server, same);
        // 511 tokens are read when the last one is generated.
        let discard = (511 - kept) / 2;
        let mut left = [&prompt[..], &all[..212]].concat();
        left.drain(kept..kept + discard);
        let more = tokens(&server, json!({"prompt": left, "n_predict": discard, "return_tokens": true}));
        assert_eq!(all[212..212 + discard], more, "{keep}");
    }
}

#[test]
fn an_answer_without_a_limit_ends_after_ten_contexts() {
    let (_, answer) = server(true).post("/completion", &completion(json!({"n_predict": -1})));
    assert_eq!((&answer["tokens_predicted"], &answer["truncated"]), (&json!(5120), &json!(true)));
}

#[test]
fn a_prompt_beyond_the_context_is_refused_all_the_same() {
    let (status, answer) = server(true).post("/completion", &completion(json!({"prompt": vec![20; 512]})));
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("exceed_context_size_error")));
}

#[test]
fn other_routes_end_where_the_context_is_full() {
    let server = server(true);
    let body = json!({"prompt": vec![20; 300], "ignore_eos": true, "max_tokens": 900});
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(212)), "{answer}");
}

#[test]
fn ollamas_answers_go_on_unless_a_request_forbids_it() {
    let server = server(true);
    // The toy ends its answers by chance, so only their bounds are checked.
    let prompt = "one two three ".repeat(60);
    let outcome = |extra: Value| {
        let mut body =
            json!({"prompt": prompt, "raw": true, "stream": false, "options": {"num_predict": 900}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, answer) = server.post("/api/generate", &body);
        assert_eq!(status, 200, "{answer}");
        let tokens = |name: &str| answer[name].as_u64().unwrap();
        let header = server.header("/api/generate", &body, "x-kvasir-clamped").1;
        (tokens("prompt_eval_count") + tokens("eval_count"), header)
    };
    let (all, header) = outcome(json!({}));
    assert!(header.is_none() && all > 0);
    let (all, header) = outcome(json!({"shift": false}));
    assert!(header.is_some() && all <= 512, "{all}");
    let ended = outcome(json!({"options": {"num_predict": 900, "num_keep": -1}}));
    assert_eq!(ended.1, None);
}

#[test]
fn what_needs_a_shift_is_ignored_by_name_without_one() {
    let server = server(false);
    let body = completion(json!({"n_keep": 5, "n_predict": 5}));
    assert_eq!(server.ignored("/completion", &body), Some("n_keep".into()));
    let body = json!({"prompt": "one", "shift": true, "options": {"num_keep": 5, "num_predict": 2}});
    assert_eq!(server.ignored("/api/generate", &body), Some("options.num_keep, shift".into()));
    let body = json!({"prompt": "one", "shift": false, "options": {"num_predict": 2}});
    assert_eq!(server.ignored("/api/generate", &body), None);
    let (_, answer) = server.post("/completion", &completion(json!({})));
    assert_eq!(answer["tokens_predicted"], json!(212));
}
