//! Streams that are read late: their backlog arrives whole, in events of bounded size.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn ids(choice: &Value) -> Vec<u64> {
    let ids = choice["token_ids"].as_array();
    ids.into_iter().flatten().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn backlogs_arrive_whole_in_events_of_bounded_size() {
    let server = Server::start(CacheKind::Radix, 1000, &[]);
    let mut body = json!({"model": "tiny", "prompt": "hello", "max_tokens": 900, "ignore_eos": true,
        "temperature": 0, "return_token_ids": true});
    let (status, whole) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{whole}");
    body["stream"] = true.into();
    let events = server.late_events("/v1/completions", &body);
    let parts: Vec<Vec<u64>> = events.iter().map(|event| ids(&event["choices"][0])).collect();
    assert!(parts.iter().all(|part| part.len() <= 256));
    assert!(parts.iter().any(|part| part.len() > 1), "it was read late");
    assert_eq!((parts.concat().len(), parts.concat()), (900, ids(&whole["choices"][0])));
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(whole["choices"][0]["text"], text);
}
