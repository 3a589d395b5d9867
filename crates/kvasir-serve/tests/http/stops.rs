//! Stop sequences and stop tokens over HTTP, with `min_tokens` and `ignore_eos`.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn greedy(extra: Value) -> Value {
    let mut body = json!({"prompt": [20, 21, 22], "temperature": 0, "ignore_eos": true, "max_tokens": 24});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn stop_sequences_respect_min_tokens_over_http() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let count = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    let (_, answer) = server.post("/v1/completions", &greedy(json!({})));
    let stop: String = answer["choices"][0]["text"].as_str().unwrap().chars().take(1).collect();
    let least = |n: u32| {
        let answer = server.post("/v1/completions", &greedy(json!({"stop": [&stop], "min_tokens": n}))).1;
        (count(&answer), answer["choices"][0]["finish_reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(least(0), (1, "stop".into()));
    let (tokens, _) = least(6);
    assert!((7..=24).contains(&tokens), "{tokens}");
    assert_eq!(least(24), (24, "length".into()));
}

#[test]
fn stop_tokens_end_an_answer_that_ignores_eos() {
    for server in [Server::start(CacheKind::Radix, 512, &[]), Server::drafting("suffix", 512)] {
        let complete = |extra: Value| server.post("/v1/completions", &greedy(extra)).1;
        let whole = complete(json!({"return_token_ids": true}));
        let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
        // A drafter has the first answer to draft from.
        let first = ids.iter().position(|id| *id == ids[9]).unwrap();
        let cut = complete(json!({"return_token_ids": true, "stop_token_ids": [ids[9]]}));
        let choice = &cut["choices"][0];
        assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&json!(ids[..=first]), &json!("stop")));
        assert_eq!(cut["usage"]["completion_tokens"], first + 1);
        let text = |ids: &[Value]| server.post("/detokenize", &json!({"tokens": ids})).1["prompt"].clone();
        let shown = complete(json!({"stop_token_ids": [ids[9]], "include_stop_str_in_output": true}));
        let texts = [&choice["text"], &shown["choices"][0]["text"]].map(|text| text.as_str().unwrap().trim());
        let wanted = [text(&ids[..first]), text(&ids[..=first])];
        assert_eq!(texts, wanted.each_ref().map(|text| text.as_str().unwrap().trim()));
    }
}
