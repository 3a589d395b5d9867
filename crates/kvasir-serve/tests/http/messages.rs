//! Anthropic's Messages API over HTTP: usage in streams.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn events(server: &Server, prompt: &str) -> Vec<Value> {
    let message = json!({"role": "user", "content": prompt});
    let body = json!({"model": "tiny", "max_tokens": 8, "stream": true, "messages": [message]});
    server.events("/v1/messages", &body)
}

/// A prompt of system and question, whose system prompt is marked or not.
fn complete(server: &Server, system: &str, mark: Option<&str>, question: &str) -> Value {
    let mut block = json!({"type": "text", "text": system});
    if let Some(ttl) = mark {
        block["cache_control"] = json!({"type": "ephemeral", "ttl": ttl});
    }
    let message = json!({"role": "user", "content": question});
    let body = json!({"model": "tiny", "max_tokens": 4, "system": [block], "messages": [message]});
    let (status, answer) = server.post("/v1/messages", &body);
    assert_eq!(status, 200, "{answer}");
    answer["usage"].clone()
}

#[test]
fn marked_prefixes_outlive_others() {
    for mark in [None, Some("5m"), Some("1h")] {
        let server = Server::start(CacheKind::Radix, 512, &[]);
        let system = "one two three ".repeat(9);
        let number = |usage: &Value, field: &str| usage[field].as_u64().unwrap();
        let first = complete(&server, &system, mark, "hello");
        let created = number(&first, "cache_creation_input_tokens");
        assert_eq!(created > 0, mark.is_some(), "{first}");
        let of = |ttl: &str| number(&first["cache_creation"], &format!("ephemeral_{ttl}_input_tokens"));
        assert_eq!((of("5m") > 0, of("1h") > 0), (mark == Some("5m"), mark == Some("1h")), "{first}");
        // Others fill the pool several times.
        for n in 0..9 {
            complete(&server, &format!("{n} four five ").repeat(14), None, "hello");
        }
        let second = complete(&server, &system, mark, "good bye");
        let read = number(&second, "cache_read_input_tokens");
        assert_eq!(read > 0, mark.is_some(), "{mark:?}: {second}");
        let (all, new) =
            (read + number(&second, "cache_creation_input_tokens"), number(&second, "input_tokens"));
        assert!(mark.is_none() || all == created && new < created, "{first} {second}");
    }
}

#[test]
fn marks_must_be_ephemeral() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for (control, param) in [
        (json!({"type": "eternal"}), "messages[0].content[0].cache_control.type"),
        (json!({"type": "ephemeral", "ttl": "2h"}), "messages[0].content[0].cache_control.ttl"),
    ] {
        let block = json!({"type": "text", "text": "a", "cache_control": control});
        let message = json!({"role": "user", "content": [block]});
        let body = json!({"model": "tiny", "max_tokens": 4, "messages": [message]});
        let (status, answer) = server.post("/v1/messages", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
}

#[test]
fn a_stream_begins_with_what_the_cache_holds() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let prompt = "hello ".repeat(60);
    for turn in 0..2 {
        let events = events(&server, &prompt);
        assert_eq!(events[0]["type"], "message_start");
        let last = events.iter().find(|event| event["type"] == "message_delta").unwrap();
        let (begun, ended) = (&events[0]["message"]["usage"], &last["usage"]);
        for field in ["input_tokens", "cache_read_input_tokens"] {
            assert_eq!(begun[field], ended[field], "{field} of turn {turn}");
        }
        assert_eq!(begun["cache_read_input_tokens"].as_u64().unwrap() > 0, turn == 1, "{begun}");
    }
}
