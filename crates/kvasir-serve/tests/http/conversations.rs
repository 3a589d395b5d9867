//! `/v1/conversations` over HTTP: items are added, listed and removed, and `/v1/responses`
//! continues them.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn message(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": text})
}

fn listed(server: &Server, path: &str) -> Vec<Value> {
    let (status, list) = server.send("GET", &format!("{path}/items?order=asc"), "", "");
    assert_eq!(status, 200, "{list}");
    list["data"].as_array().unwrap().clone()
}

#[test]
fn items_are_added_listed_and_removed() {
    let server = Server::start(CacheKind::Radix, 512, &["one", "two"]);
    let send = |method: &str, path: &str, body: Value| server.send(method, path, "one", &body.to_string());
    let create = json!({"items": [message("a")], "metadata": {"topic": "x"}});
    let (status, created) = send("POST", "/v1/conversations", create);
    assert_eq!((status, &created["object"]), (200, &json!("conversation")), "{created}");
    let path = format!("/v1/conversations/{}", created["id"].as_str().unwrap());
    assert_eq!(send("GET", &path, Value::Null).1, created);
    let (_, updated) = send("POST", &path, json!({"metadata": {"topic": "y"}}));
    assert_eq!(updated["metadata"], json!({"topic": "y"}));
    let (_, added) = send("POST", &format!("{path}/items"), json!({"items": [message("b"), message("c")]}));
    assert_eq!((added["data"].as_array().unwrap().len(), &added["has_more"]), (2, &json!(false)));
    let items = format!("{path}/items");
    let (_, list) = send("GET", &format!("{items}?limit=2"), Value::Null);
    let texts: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!((texts, &list["has_more"]), (vec![&json!("c"), &json!("b")], &json!(true)));
    let one = format!("{items}/{}", added["first_id"].as_str().unwrap());
    assert_eq!(send("GET", &one, Value::Null).1, added["data"][0]);
    assert_eq!(send("DELETE", &one, Value::Null).1["object"], "conversation");
    assert_eq!(send("GET", &one, Value::Null).0, 404);
    assert_eq!(server.send("GET", &path, "two", "").0, 404, "another key sees nothing");
    let (_, deleted) = send("DELETE", &path, Value::Null);
    assert_eq!((&deleted["object"], &deleted["deleted"]), (&json!("conversation.deleted"), &json!(true)));
    assert_eq!(send("GET", &items, Value::Null).0, 404);
}

#[test]
fn responses_continue_a_conversation() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (_, created) = server.post("/v1/conversations", &json!({"items": [message("my name is Ada")]}));
    let path = format!("/v1/conversations/{}", created["id"].as_str().unwrap());
    let respond = |extra: Value| {
        let mut body = json!({"input": "hello", "max_output_tokens": 4});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/responses", &body)
    };
    let (_, alone) = respond(json!({}));
    let (status, first) = respond(json!({"conversation": created["id"]}));
    assert_eq!((status, &first["conversation"]["id"]), (200, &created["id"]), "{first}");
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&first) > tokens(&alone));
    assert_eq!(listed(&server, &path).len(), 3, "input and output are appended");
    let (_, second) = respond(json!({"conversation": {"id": created["id"]}, "store": false}));
    assert!(tokens(&second) > tokens(&first));
    let items = listed(&server, &path);
    assert_eq!((items.len(), &items[4]["role"]), (5, &json!("assistant")), "stored or not");
    for (extra, param) in [
        (json!({"conversation": "conv_0"}), "conversation"),
        (json!({"conversation": 5}), "conversation"),
        (json!({"conversation": {"name": "x"}}), "conversation.id"),
        (json!({"conversation": created["id"], "previous_response_id": alone["id"]}), "conversation"),
    ] {
        let (status, error) = respond(extra);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
}
