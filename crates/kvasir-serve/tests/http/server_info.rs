//! SGLang's worker endpoints: `/server_info`, `/model_info`, `/v1/loads`.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};

#[test]
fn worker_endpoints_report_limits_and_load() {
    let server = Server::start(CacheKind::Paged, 256, &[]);
    let body = json!({"prompt": vec![1; 40], "max_tokens": 2, "ignore_eos": true});
    let complete = || server.post("/v1/completions", &body).0;
    assert_eq!((complete(), complete()), (200, 200));
    let get = |path: &str| server.send("GET", path, "", "");
    let (status, info) = get("/server_info");
    assert_eq!((status, &info["dp_size"], &info["kv_events"]), (200, &json!(1), &Value::Null), "{info}");
    assert_eq!((&info["max_total_num_tokens"], &info["served_model_name"]), (&json!(256), &json!("tiny")));
    let block = info["page_size"].as_u64().unwrap();
    assert!((2..=40).contains(&block), "{info}");
    let (status, loads) = get("/v1/loads?include=core,disagg,queues,memory");
    assert_eq!((status, &loads["dp_rank_count"]), (200, &json!(1)), "{loads}");
    let load = &loads["loads"][0];
    assert_eq!(*load, info["internal_states"][0]);
    assert_eq!((&load["num_running_reqs"], &load["num_waiting_reqs"]), (&json!(0), &json!(0)));
    assert_eq!((&load["max_total_num_tokens"], &load["token_usage"]), (&json!(256), &json!(0.0)));
    let hits = load["cache_hit_rate"].as_f64().unwrap();
    assert!((0.25..=0.5).contains(&hits), "the second prompt hits: {load}");
    assert_eq!(get("/v1/loads?dp_rank=0").1["loads"], loads["loads"]);
    for (query, parameter) in
        [("dp_rank=1", "dp_rank"), ("dp_rank=x", "dp_rank"), ("format=prometheus", "format")]
    {
        let (status, answer) = get(&format!("/v1/loads?{query}"));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(parameter)), "{answer}");
    }
    let (status, model) = get("/get_model_info");
    assert_eq!((status, &model["is_generation"]), (200, &json!(true)), "{model}");
    assert_eq!(get("/get_server_info").1["page_size"], info["page_size"]);
}

#[test]
fn worker_endpoints_require_a_key() {
    let server = Server::start(CacheKind::Paged, 256, &["sk-one"]);
    for path in ["/server_info", "/model_info", "/v1/loads"] {
        assert_eq!(server.send("GET", path, "", "").0, 401, "{path}");
        assert_eq!(server.send("GET", path, "sk-one", "").0, 200, "{path}");
    }
}
