//! Speculative decoding over HTTP: bounds of `prediction`, servers that do not use it, and drafts
//! behind a stop sequence.

use super::server::{Server, model};
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn chat(prediction: &str, extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0,
        "prediction": {"type": "content", "content": prediction}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn predictions_beyond_the_context_are_refused_by_their_bytes() {
    let server = Server::drafting("suffix", 512);
    let long = "many words ".repeat(1 << 20);
    let (status, answer) = server.post(CHAT, &chat(&long, json!({})));
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("prediction")), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("`prediction` has"), "{message}");
    // Without drafts it is not read.
    assert_eq!(server.post(CHAT, &chat(&long, json!({"speculation": false}))).0, 200);
}

#[test]
fn predictions_are_cut_to_the_context_length() {
    let model = model(100, Some("suffix"));
    let text = "many words ".repeat(1000);
    let whole = model.encode(&text, false).unwrap();
    assert_eq!(model.encode_prediction(&text).unwrap(), whole[..100]);
    assert_eq!(model.encode_prediction("many").unwrap(), model.encode("many", false).unwrap());
}

#[test]
fn predictions_without_effect_are_named_as_ignored() {
    let body = chat("hi there", json!({}));
    let names = Some("prediction".to_owned());
    assert_eq!(Server::start(CacheKind::Radix, 512, &[]).ignored(CHAT, &body), names);
    assert_eq!(Server::drafting("ngram", 512).ignored(CHAT, &body), names);
    assert_eq!(Server::drafting("suffix", 512).ignored(CHAT, &body), None);
}

#[test]
fn accepted_drafts_are_at_most_the_tokens_of_the_answer() {
    let server = Server::drafting("suffix", 512);
    let complete = |extra: Value| {
        let mut body =
            json!({"prompt": [20, 21, 22], "temperature": 0, "ignore_eos": true, "max_tokens": 24});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let usage = &answer["usage"];
        let accepted = usage["completion_tokens_details"]["accepted_prediction_tokens"].as_u64().unwrap_or(0);
        let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
        (text, usage["completion_tokens"].as_u64().unwrap(), accepted)
    };
    let (text, tokens, _) = complete(json!({}));
    // Later answers are drafted from the first one.
    assert_eq!(complete(json!({})).0, text);
    let drafted: u64 = (3..text.len())
        .filter(|end| text.is_char_boundary(*end))
        .map(|end| {
            let stop = text[..end].chars().last().unwrap().to_string();
            let (_, kept, accepted) = complete(json!({"stop": stop}));
            assert!(accepted <= kept && kept <= tokens, "{accepted} of {kept} before {stop:?}");
            accepted
        })
        .sum();
    assert!(drafted > 0);
}

#[test]
fn timings_count_the_steps_with_drafts() {
    let server = Server::drafting("suffix", 512);
    let body = json!({"prompt": [20, 21, 22], "temperature": 0, "ignore_eos": true, "max_tokens": 24,
        "timings_per_token": true});
    let complete = || server.post("/v1/completions", &body).1["timings"].take();
    assert!(complete().is_object());
    // The second answer is drafted from the first one.
    let timings = complete();
    let [tokens, accepted, steps] =
        ["predicted_n", "draft_n_accepted", "draft_n_steps"].map(|name| timings[name].as_u64().unwrap());
    assert!(steps > 0 && steps + accepted < tokens + 1 && accepted > steps, "{timings}");
}
