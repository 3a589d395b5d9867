//! Stored responses over HTTP: their input items by pages, and query parameters.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn stored(server: &Server, input: Value) -> String {
    let (status, response) = server.post("/v1/responses", &json!({"input": input, "max_output_tokens": 2}));
    assert_eq!(status, 200, "{response}");
    format!("/v1/responses/{}", response["id"].as_str().unwrap())
}

#[test]
fn input_items_come_in_pages() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let text = |i: usize| i.to_string();
    let item = |i: usize| json!({"role": "user", "content": text(i)});
    let path = stored(&server, (0..25).map(item).collect());
    let get = |query: &str| server.send("GET", &format!("{path}/input_items{query}"), "", "");
    let (_, first) = get("");
    let data = first["data"].as_array().unwrap();
    assert_eq!((data.len(), &first["has_more"]), (20, &json!(true)), "{first}");
    assert_eq!(data[0]["content"], json!([{"type": "input_text", "text": "24"}]));
    assert_eq!((&data[0]["type"], &data[0]["status"]), (&json!("message"), &json!("completed")));
    let (_, rest) = get(&format!("?after={}", first["last_id"].as_str().unwrap()));
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (5, &json!(false)));
    let (_, oldest) = get("?order=asc&limit=1");
    assert_eq!((&oldest["data"][0]["content"][0]["text"], &oldest["has_more"]), (&json!("0"), &json!(true)));
    assert_eq!(oldest["first_id"], oldest["last_id"]);
    for (query, param) in
        [("?limit=0", "limit"), ("?limit=a", "limit"), ("?order=x", "order"), ("?after=x", "after")]
    {
        let (status, answer) = get(query);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)));
    }
}

#[test]
fn parameters_without_effect_are_named() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let path = stored(&server, "hi".into());
    for (query, param) in
        [("?stream=true", "stream"), ("?stream=x", "stream"), ("?starting_after=3", "starting_after")]
    {
        let (status, answer) = server.send("GET", &format!("{path}{query}"), "", "");
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{query}");
    }
    for end in ["", "/input_items"] {
        let query = "?include[]=reasoning.encrypted_content&include%5B%5D=a.b&foo=1";
        let (status, headers) = server.head("GET", &format!("{path}{end}{query}"), &[]);
        let names = headers["x-kvasir-ignored"].to_str().unwrap();
        assert_eq!((status, names), (200, "foo, include.reasoning.encrypted_content, include.a.b"));
    }
    let (status, headers) = server.head("GET", &format!("{path}?stream=false"), &[]);
    assert_eq!((status, headers.get("x-kvasir-ignored")), (200, None));
}
