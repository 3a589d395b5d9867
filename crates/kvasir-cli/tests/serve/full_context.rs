//! Answers at the end of the context: limits that are clamped, and contexts that are shifted.

use crate::server::{CHAT, JSON, Server, chat};
use serde_json::{Value, json};
use std::io::BufRead;

const CONTEXT: u64 = 128;

#[test]
fn a_clamped_limit_is_in_the_header_and_in_the_log() {
    let (server, log) = Server::built_in(&["--max-model-len", "128"]);
    let body = chat(json!({"max_tokens": 32_000, "ignore_eos": true})).to_string();
    let answer = server.exchange("POST", CHAT, JSON, &body);
    let clamped = answer.header("x-kvasir-clamped").unwrap().to_owned();
    let (usage, limit) = (answer.json()["usage"].clone(), clamped.strip_prefix("max_tokens=").unwrap());
    assert_eq!((answer.status, usage["completion_tokens"].to_string()), (200, limit.to_owned()));
    assert_eq!(usage["total_tokens"], CONTEXT);
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    let line = log.lines().map(Result::unwrap).find(|line| line.contains("clamped")).unwrap();
    assert!(line.contains(&format!("clamped=max_tokens requested=32000 limit={limit}")), "{line}");
    assert!(line.contains(" info ") && line.contains("route=/v1/chat/completions"), "{line}");
    assert!(!line.contains("hello"), "{line}");
}

#[test]
fn an_answer_continues_when_its_context_is_full() {
    let options = ["--max-model-len", "128"];
    let flag = [&options[..], &["--context-shift", "on"]].concat();
    let body = json!({"prompt": "Once upon a time", "n_predict": 400, "temperature": 0, "ignore_eos": true});
    let answer = |options: &[&str], environment: &[(&str, &str)]| {
        let server = Server::start_with("shift", options, environment);
        let (status, answer) = server.post("/completion", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let ended = answer(&options, &[]);
    let tokens = |answer: &Value, name: &str| answer[name].as_u64().unwrap();
    let full = tokens(&ended, "tokens_predicted") + tokens(&ended, "tokens_evaluated");
    assert_eq!((full, &ended["truncated"]), (CONTEXT, &json!(true)));
    let shifted = answer(&flag, &[]);
    assert_eq!((tokens(&shifted, "tokens_predicted"), &shifted["truncated"]), (400, &json!(true)));
    let text = |answer: &Value| answer["content"].as_str().unwrap().to_owned();
    assert!(text(&shifted).starts_with(text(&ended).trim_end_matches('\u{fffd}')));
    let by_variable = answer(&options, &[("KVASIR_CONTEXT_SHIFT", "on")]);
    assert_eq!(text(&by_variable), text(&shifted));
}
