//! llama.cpp's routes: completion, fill in the middle, properties, tokens, and paths without a version.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn body(extra: Value) -> Value {
    let mut body = json!({"prompt": [20, 21, 22], "temperature": 0, "ignore_eos": true, "n_predict": 12});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn a_completion_is_whole_or_streamed() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (status, whole) = server.post("/completion", &body(json!({"return_tokens": true})));
    assert_eq!((status, &whole["stop_type"], &whole["tokens_predicted"]), (200, &json!("limit"), &json!(12)));
    assert_eq!((&whole["tokens_evaluated"], whole["tokens"].as_array().unwrap().len()), (&json!(3), 12));
    assert!(whole["timings"]["predicted_n"] == 12, "{whole}");
    let events = server.events("/completion", &body(json!({"stream": true})));
    let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(whole["content"], json!(text));
    assert_eq!(events.last().unwrap()["stop"], json!(true));
    let word: String = text.chars().take(2).collect();
    let (_, cut) = server.post("/completion", &body(json!({"stop": [word]})));
    assert_eq!(
        (&cut["stop_type"], &cut["stopping_word"], &cut["content"]),
        (&json!("word"), &json!(word), &json!(""))
    );
}

#[test]
fn the_middle_is_filled_where_the_vocabulary_can() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let gap = json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 3, "ignore_eos": true});
    let (status, answer) = server.post("/infill", &gap);
    // The vocabulary of this server has no such tokens.
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("suffix")), "{answer}");
    let (status, answer) = server.post("/v1/completions", &json!({"prompt": "a", "suffix": "b"}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("suffix")), "{answer}");
}

#[test]
fn paths_work_without_a_version() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for path in ["/completions", "/v1/completions"] {
        let (status, answer) = server.post(path, &body(json!({"timings_per_token": true})));
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(12)), "{path}");
        assert_eq!(answer["timings"]["predicted_n"], json!(12));
    }
    for path in ["/models", "/props", "/slots"] {
        assert_eq!(server.send("GET", path, "", "").0, 200, "{path}");
    }
}

#[test]
fn texts_are_tokenized_under_either_name() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let tokens = |body: Value| server.post("/tokenize", &body).1["tokens"].clone();
    let ids = tokens(json!({"content": "one two"}));
    assert_eq!(ids, tokens(json!({"prompt": "one two", "add_special_tokens": false})));
    assert_eq!(server.post("/detokenize", &json!({"tokens": ids})).1["content"], json!("one two"));
}
