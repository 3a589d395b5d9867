//! Pinned prefixes over HTTP: listed and ended by their key, and by an admin's key.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, ApiKey, Keys};
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::time::Duration;

fn server() -> Server {
    let key = |name: &str, is_admin| ApiKey { name: Some(name.into()), secret: name.into(), is_admin };
    let keys = Keys::new(vec![key("alice", false), key("bob", false), key("boss", true)]);
    let access = AccessControl { keys, ..AccessControl::default() };
    Server::behind(Toy::new(), CacheKind::Radix, 512, access, Duration::MAX)
}

fn pin(server: &Server, key: &str, text: &str) {
    let control = json!({"type": "ephemeral"});
    let block = json!({"type": "text", "text": text.repeat(9), "cache_control": control});
    let message = json!({"role": "user", "content": "hello"});
    let body = json!({"model": "tiny", "max_tokens": 4, "system": [block], "messages": [message]});
    let (status, answer) = server.send("POST", "/v1/messages", key, &body.to_string());
    assert_eq!(status, 200, "{answer}");
}

fn pins(server: &Server, path: &str, key: &str) -> Vec<Value> {
    let (status, list) = server.send("GET", path, key, "");
    assert_eq!(status, 200, "{list}");
    list["data"].as_array().unwrap().clone()
}

#[test]
fn keys_list_and_end_their_own_pins() {
    let server = server();
    pin(&server, "alice", "one two three ");
    pin(&server, "alice", "four five six ");
    pin(&server, "bob", "one two three ");
    let own = pins(&server, "/v1/pins", "alice");
    assert_eq!((own.len(), pins(&server, "/v1/pins", "bob").len()), (2, 1));
    assert!(own[0]["tokens"].as_u64().unwrap() > 0 && own[0].get("key").is_none(), "{own:?}");
    assert!((1..=300).contains(&own[0]["expires_in"].as_u64().unwrap()));
    let path = format!("/v1/pins/{}", own[0]["id"].as_str().unwrap());
    assert_eq!(server.send("DELETE", &path, "bob", "").0, 404, "another key's");
    let (status, deleted) = server.send("DELETE", &path, "alice", "");
    assert_eq!((status, &deleted["deleted"]), (200, &json!([own[0]["id"]])));
    assert_eq!(server.send("DELETE", &path, "alice", "").0, 404);
    assert_eq!(pins(&server, "/v1/pins", "alice"), own[1..]);
    let (status, deleted) = server.send("DELETE", "/v1/pins", "alice", "");
    assert_eq!((status, &deleted["deleted"]), (200, &json!([own[1]["id"]])));
    assert_eq!((pins(&server, "/v1/pins", "alice").len(), pins(&server, "/v1/pins", "bob").len()), (0, 1));
}

#[test]
fn admins_list_and_end_the_pins_of_all_keys() {
    let server = server();
    pin(&server, "alice", "one two three ");
    pin(&server, "bob", "four five six ");
    for (method, path) in [("GET", "/v1/admin/pins"), ("DELETE", "/v1/admin/pins")] {
        assert_eq!(server.send(method, path, "alice", "").0, 401);
    }
    let all = pins(&server, "/v1/admin/pins", "boss");
    let owners: Vec<&Value> = all.iter().map(|pin| &pin["key"]).collect();
    assert_eq!(owners, ["bob", "alice"], "most recently used first");
    let path = format!("/v1/admin/pins/{}", all[0]["id"].as_str().unwrap());
    assert_eq!(server.send("DELETE", &path, "boss", "").0, 200);
    assert_eq!((pins(&server, "/v1/pins", "bob").len(), pins(&server, "/v1/pins", "alice").len()), (0, 1));
    assert_eq!(server.send("DELETE", "/v1/admin/pins", "boss", "").0, 200);
    assert_eq!(pins(&server, "/v1/admin/pins", "boss"), [] as [Value; 0]);
}

#[test]
fn erasing_a_slot_ends_the_pins_of_the_key() {
    let server = server();
    pin(&server, "alice", "one two three ");
    pin(&server, "bob", "four five six ");
    assert_eq!(server.send("POST", "/slots/0?action=erase", "alice", "").0, 200);
    assert_eq!((pins(&server, "/v1/pins", "alice").len(), pins(&server, "/v1/pins", "bob").len()), (0, 1));
}
