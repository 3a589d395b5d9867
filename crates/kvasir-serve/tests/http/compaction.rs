//! `/v1/responses/compact`: the summary comes in one item, which a later request takes.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::json;

#[test]
fn a_compacted_conversation_is_continued() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let first = json!({"input": "hello", "max_output_tokens": 4});
    let (_, first) = server.post("/v1/responses", &first);
    let body = json!({"model": "tiny", "previous_response_id": first["id"], "input": "more"});
    let (status, compacted) = server.post("/v1/responses/compact", &body);
    assert_eq!((status, &compacted["object"]), (200, &json!("response.compaction")), "{compacted}");
    let output = compacted["output"].as_array().unwrap();
    assert_eq!((output.len(), &output[0]["type"]), (1, &json!("compaction")), "{compacted}");
    assert!(compacted["usage"]["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64());
    let tokens = |item: &serde_json::Value| {
        let body = json!({"input": [item, {"role": "user", "content": "and?"}]});
        let (status, count) = server.post("/v1/responses/input_tokens", &body);
        assert_eq!(status, 200, "{count}");
        (count["input_tokens"].as_u64().unwrap(), server.ignored("/v1/responses/input_tokens", &body))
    };
    let foreign = json!({"type": "compaction", "encrypted_content": "gAAAA"});
    let (own, none) = tokens(&output[0]);
    let (without, named) = tokens(&foreign);
    assert!(own > without, "the summary is read");
    assert_eq!((none, named.as_deref()), (None, Some("input[].compaction")));
}

#[test]
fn a_conversation_as_long_as_the_context_is_compacted() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let item = |i: usize| json!({"role": "user", "content": format!("{i} one two three four five")});
    let items: Vec<_> = (0..60).map(item).collect();
    let (status, compacted) = server.post("/v1/responses/compact", &json!({"model": "tiny", "input": items}));
    assert_eq!(status, 200, "{compacted}");
}
