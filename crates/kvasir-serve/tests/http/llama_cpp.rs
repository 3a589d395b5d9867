//! llama.cpp's routes: completion, fill in the middle, properties, tokens, and paths without a version.

use super::server::{Server, with_facts};
use kvasir_kv::CacheKind;
use kvasir_serve::model::Facts;
use kvasir_sim::Toy;
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
fn responses_are_created_without_a_version_in_the_path() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (status, response) = server.post("/responses", &json!({"input": "hi", "max_output_tokens": 4}));
    assert_eq!((status, &response["object"]), (200, &json!("response")), "{response}");
    let (status, refused) = server.post("/responses", &json!({"input": 3}));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("input")), "{refused}");
}

#[test]
fn the_request_is_repeated_with_its_settings() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (_, answer) = server.post("/completion", &body(json!({"seed": 3, "logit_bias": [[7, -1.5]]})));
    let settings = &answer["generation_settings"];
    assert_eq!((&settings["n_predict"], &settings["seed"]), (&json!(12), &json!(3)));
    let ends = json!({"token": Toy::EOS, "bias": null});
    assert_eq!(
        settings["logit_bias"],
        json!([{"token": 7, "bias": -1.5}, ends]),
        "no bias is minus infinity"
    );
    let (_, text) = server.post("/detokenize", &json!({"tokens": [20, 21, 22]}));
    assert_eq!((&answer["prompt"], &answer["truncated"]), (&text["content"], &json!(false)));
    assert_eq!(answer["tokens"], json!([]), "whole answers have tokens on request");
    assert!(answer["has_new_line"].is_boolean());

    let fields = json!({"response_fields": ["content", "generation_settings/n_predict", "nothing"]});
    let (_, kept) = server.post("/completion", &body(fields));
    let expected = json!({"content": answer["content"], "generation_settings/n_predict": 12});
    assert_eq!(kept, expected);
    let events = server.events("/completion", &body(json!({"stream": true})));
    assert!(events.iter().all(|event| event["tokens"].as_array().is_some_and(|ids| !ids.is_empty())));
}

#[test]
fn several_prompts_get_a_list() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (_, one) = server.post("/completion", &body(json!({})));
    let text = server.post("/detokenize", &json!({"tokens": [21]})).1["content"].clone();
    let prompts = json!([[20, 21, 22], [20, text, 22], {"prompt_string": "one"}]);
    let (status, list) = server.post("/completion", &body(json!({"prompt": prompts})));
    let list = list.as_array().unwrap();
    assert_eq!((status, list.len()), (200, 3));
    assert_eq!((&list[0]["content"], &list[1]["content"]), (&one["content"], &one["content"]));
    assert_eq!(list.iter().map(|one| one["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(list[2]["prompt"], json!("one"));
}

#[test]
fn no_tokens_are_predicted_for_a_limit_of_zero() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let prompt: Vec<u32> = (20..84).collect();
    let warm = json!({"prompt": prompt, "n_predict": 0});
    let (status, answer) = server.post("/completion", &body(warm.clone()));
    assert_eq!(
        (status, &answer["content"], &answer["tokens_predicted"], &answer["timings"]["predicted_n"]),
        (200, &json!(""), &json!(0), &json!(0))
    );
    let mut streamed = warm;
    streamed["stream"] = true.into();
    let events = server.events("/completion", &body(streamed));
    assert_eq!((events.len(), &events[0]["stop"]), (1, &json!(true)));
    assert!(events[0]["tokens_cached"].as_u64().unwrap() >= 48, "the prompt was cached: {events:?}");
}

#[test]
fn the_bias_of_a_text_is_that_of_its_tokens() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let ids = server.post("/tokenize", &json!({"content": "one two"})).1["tokens"].clone();
    let ids: Vec<u64> = serde_json::from_value(ids).unwrap();
    for bias in [json!([["one two", false]]), json!({"one two": -100})] {
        let (status, answer) = server.post("/completion", &body(json!({"logit_bias": bias})));
        if ids.iter().any(|id| *id >= 500) {
            // The device has fewer tokens than the tokenizer.
            assert_eq!((status, &answer["error"]["param"]), (400, &json!("logit_bias")), "{answer}");
            continue;
        }
        let settings = answer["generation_settings"]["logit_bias"].as_array().unwrap().clone();
        let biased: Vec<u64> = settings.iter().filter_map(|one| one["token"].as_u64()).collect();
        assert!(ids.iter().all(|id| biased.contains(id)), "{settings:?}");
    }
}

#[test]
fn the_middle_is_filled_where_the_vocabulary_can() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let gap = json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 3, "ignore_eos": true});
    let (status, answer) = server.post("/infill", &gap);
    // The vocabulary of this server has no such tokens.
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("input_suffix")), "{answer}");
    let (status, answer) = server.post("/v1/completions", &json!({"prompt": "a", "suffix": "b"}));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("suffix")), "{answer}");
}

#[test]
fn chunks_have_timings_on_request() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let timed = json!({"timings_per_token": true, "stream": true, "n_predict": 200});
    let chunks = server.events("/completion", &body(timed));
    assert!(!chunks.is_empty());
    for chunk in &chunks {
        let timings = &chunk["timings"];
        assert_eq!(timings["predicted_n"], chunk["tokens_predicted"], "{chunk}");
        assert!(timings["prompt_n"] == 3 && timings["prompt_ms"].is_f64(), "{chunk}");
    }
}

#[test]
fn paths_work_without_a_version() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for path in ["/completions", "/v1/completions"] {
        let (status, answer) = server.post(path, &body(json!({"timings_per_token": true})));
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(12)), "{path}");
        assert_eq!(answer["timings"]["predicted_n"], json!(12));
    }
    for path in ["/models", "/props", "/slots", "/v1/health"] {
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
    let pieces = tokens(json!({"content": "one two \u{1f917}", "with_pieces": true}));
    let pieces = pieces.as_array().unwrap();
    assert_eq!(pieces.iter().map(|one| &one["id"]).take(2).collect::<Vec<_>>(), [&ids[0], &ids[1]]);
    let bytes = |one: &Value| match &one["piece"] {
        Value::String(text) => text.as_bytes().to_vec(),
        bytes => serde_json::from_value(bytes.clone()).unwrap(),
    };
    let all: Vec<u8> = pieces.iter().flat_map(bytes).collect();
    assert_eq!(String::from_utf8(all).unwrap(), "one two \u{1f917}");
    for extra in [json!({"prompt": "a"}), json!({"add_special": 1})] {
        let mut both = json!({"content": "a"});
        both.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_eq!(server.post("/tokenize", &both).0, 400, "{both}");
    }
}

#[test]
fn there_is_a_slot_for_each_place() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let get = |path: &str| server.send("GET", path, "", "").1;
    let (slots, props) = (get("/slots"), get("/props"));
    let slots = slots.as_array().unwrap();
    assert_eq!(json!(slots.len()), props["total_slots"]);
    assert!(slots.iter().all(|slot| slot["is_processing"] == json!(false)));
}

#[test]
fn an_erased_slot_leaves_no_prefix_to_be_found() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let prompt: Vec<u32> = (20..84).collect();
    let cached = || {
        let (status, answer) = server.post("/completion", &body(json!({"prompt": prompt})));
        assert_eq!(status, 200, "{answer}");
        answer["tokens_cached"].as_u64().unwrap()
    };
    assert_eq!(cached(), 0);
    assert!(cached() >= 48);
    let act = |path: &str| server.send("POST", path, "", "");
    let (status, answer) = act("/slots/0?action=erase");
    assert_eq!((status, &answer["id_slot"]), (200, &json!(0)));
    assert_eq!(cached(), 0);
    assert!(cached() >= 48);
    for action in ["save", "restore"] {
        let (status, answer) = act(&format!("/slots/0?action={action}"));
        assert_eq!((status, &answer["error"]["type"]), (501, &json!("not_supported_error")), "{answer}");
    }
    for (path, param) in
        [("/slots/99999?action=erase", "id"), ("/slots/x?action=erase", "id"), ("/slots/0", "action")]
    {
        let (status, answer) = act(path);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

#[test]
fn a_prompt_beyond_the_context_says_by_how_much() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for stream in [false, true] {
        let long = body(json!({"prompt": vec![20; 600], "stream": stream}));
        let (status, mut answer) = server.post("/completion", &long);
        let message = answer["error"]["message"].take();
        let error = json!({
            "code": 400, "message": null, "type": "exceed_context_size_error", "param": "prompt",
            "n_prompt_tokens": 600, "n_ctx": 512,
        });
        assert_eq!((status, &answer["error"]), (400, &error));
        assert!(message.as_str().unwrap().contains("exceeds the available context size"), "{message}");
    }
    let (status, answer) = server.post("/v1/completions", &body(json!({"prompt": vec![20; 600]})));
    let error = &answer["error"];
    assert_eq!((status, &error["n_prompt_tokens"], &error["n_ctx"]), (400, &json!(600), &json!(512)));
    assert_eq!(error["code"], "context_length_exceeded");
}

#[test]
fn errors_have_the_status_as_their_code() {
    let server = Server::start(CacheKind::Radix, 512, &["key"]);
    for (path, key, status, kind) in [
        ("/completion", "key", 400, "invalid_request_error"),
        ("/infill", "", 401, "authentication_error"),
        ("/embedding", "key", 400, "invalid_request_error"),
    ] {
        let (received, answer) = server.send("POST", path, key, "{}");
        let error = &answer["error"];
        assert_eq!((received, &error["code"], &error["type"]), (status, &json!(status), &json!(kind)));
    }
}

#[test]
fn generation_without_a_limit_ends_with_the_context() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for limit in [-1, -2, 509, 510, 100_000] {
        let (status, answer) = server.post("/completion", &body(json!({"n_predict": limit})));
        assert_eq!((status, &answer["tokens_predicted"]), (200, &json!(509)), "{limit}");
        assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
        assert_eq!(answer["generation_settings"]["n_predict"], json!(limit.max(-1)));
    }
    let (_, answer) = server.post("/completion", &body(json!({"n_predict": 508})));
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(false)));
}

#[test]
fn a_single_token_has_no_rate() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (_, answer) = server.post("/completion", &body(json!({"n_predict": 1})));
    assert_eq!(answer["timings"]["predicted_per_second"], json!(0.0));
}

#[test]
fn errors_of_embeddings_name_the_field_as_sent() {
    let server = Server::serving(|model| with_facts(Facts { hidden: Some(8), ..model.facts }));
    for (body, param) in [
        (json!({"content": ""}), "content"),
        (json!({"content": ["a", ""]}), "content[1]"),
        (json!({"input": ""}), "input"),
    ] {
        let (status, answer) = server.post("/embedding", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{param}`")), "{message}");
    }
}
