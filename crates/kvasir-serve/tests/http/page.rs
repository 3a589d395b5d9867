//! Routes of the web page: formulas, and the facts of its model card.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

fn formulas(server: &Server, items: Value) -> (u16, Value) {
    server.post("/page/math", &json!({"items": items}))
}

#[test]
fn formulas_are_converted_one_by_one() {
    let server = Server::start(CacheKind::Radix, 64, &[]);
    let items = json!([{"latex": "x^2"}, {"latex": "\\nothing"}, {"latex": "\\frac12", "display": true}]);
    let (status, answer) = formulas(&server, items);
    let data = answer["data"].as_array().unwrap();
    let starts =
        |item: &Value, text: &str| item["mathml"].as_str().is_some_and(|math| math.starts_with(text));
    assert_eq!((status, data.len()), (200, 3), "{answer}");
    assert!(
        starts(&data[0], "<math><msup>") && starts(&data[2], "<math display=\"block\"><mfrac>"),
        "{answer}"
    );
    assert!(data[1]["error"].as_str().unwrap().contains("\\nothing"), "{answer}");
}

#[test]
fn formula_requests_have_limits() {
    let server = Server::start(CacheKind::Radix, 64, &[]);
    let status = |items: Value| formulas(&server, items).0;
    assert_eq!(status(json!(vec![json!({"latex": "x"}); 257])), 400);
    assert_eq!((status(json!([{}])), status(json!("x")), status(json!([]))), (400, 400, 200));
    let (status, answer) = formulas(&server, json!([{"latex": "x".repeat(8193)}]));
    assert_eq!((status, &answer["data"][0]["error"]), (200, &json!("the formula is too long")));
}

#[test]
fn formulas_need_a_key() {
    let server = Server::start(CacheKind::Radix, 64, &["user"]);
    let body = json!({"items": [{"latex": "x"}]}).to_string();
    let status = |key: &str| server.send("POST", "/page/math", key, &body).0;
    assert_eq!((status(""), status("user")), (401, 200));
}

#[test]
fn models_tell_what_they_are() {
    let server = Server::start(CacheKind::Radix, 64, &[]);
    let (_, list) = server.send("GET", "/v1/models", "", "");
    let meta = &list["data"][0]["meta"];
    assert!(meta["n_vocab"].as_u64().is_some_and(|vocab| vocab > 0), "{list}");
    for flag in ["chat_template", "tools", "reasoning"] {
        assert!(meta[flag].is_boolean(), "{flag}: {list}");
    }
}
