//! Anthropic's Messages API over HTTP: usage in streams.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn events(server: &Server, prompt: &str) -> Vec<Value> {
    let message = json!({"role": "user", "content": prompt});
    let body = json!({"model": "tiny", "max_tokens": 8, "stream": true, "messages": [message]});
    server.events("/v1/messages", &body)
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
