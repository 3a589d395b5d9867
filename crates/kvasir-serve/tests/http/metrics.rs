//! `/metrics` over HTTP: counters per API key, and slots of retained conversations.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, ApiKey, Keys, RateLimits};
use kvasir_sim::Toy;
use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

fn page(server: &Server, key: &str) -> String {
    server.send("GET", "/metrics", key, "").1.as_str().unwrap().to_owned()
}

/// The value of a family of one sample.
fn value(page: &str, family: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(&format!("kvasir:{family}{{"))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn keys_are_counted_by_name() {
    let key = |name: Option<&str>, secret: &str| ApiKey {
        name: name.map(str::to_owned),
        secret: secret.into(),
        is_admin: false,
    };
    let keys =
        Keys::new(vec![key(Some("alice"), "sk-one"), key(None, "sk-two"), key(Some("bob"), "sk-three")]);
    let rate_limits = RateLimits::parse(&["bob:1,1000".to_owned()]).unwrap();
    let access = AccessControl { keys, rate_limits, ..AccessControl::default() };
    let server = Server::behind(Toy::new(), CacheKind::Paged, 256, access, Duration::MAX);
    assert!(!page(&server, "sk-one").contains("kvasir:key_"));
    let complete = |key: &str| {
        let body = json!({"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": true});
        server.send("POST", "/v1/completions", key, &body.to_string()).0
    };
    assert_eq!((complete("sk-one"), complete("sk-one"), complete("sk-two")), (200, 200, 200));
    assert_eq!((complete("sk-three"), complete("sk-three")), (200, 429));
    let page = page(&server, "sk-one");
    let counted = |family: &str, name: &str| {
        let label = format!("kvasir:key_{family}_total{{model_name=\"tiny\",key=\"{name}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&label));
        line.unwrap_or_else(|| panic!("{label}: {page}")).parse::<u32>().unwrap()
    };
    for (name, counts) in [("alice", [2, 6, 4, 0]), ("unnamed", [1, 3, 2, 0]), ("bob", [1, 3, 2, 1])] {
        let families = ["requests", "prompt_tokens", "generation_tokens", "rejections"];
        assert_eq!(families.map(|family| counted(family, name)), counts, "{name}");
    }
    assert!(!page.contains("sk-"), "a key appears");
}

#[test]
fn retained_conversations_are_no_usage() {
    let server = Server::start(CacheKind::Radix, 256, &[]);
    let (status, session) = server.post("/v1/sessions", &json!({"prompt": vec![1; 64]}));
    assert_eq!(status, 200, "{session}");
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let page = page(&server, "");
        let slots = ["retained", "held"].map(|state| value(&page, &format!("kv_cache_slots_{state}")));
        if slots == [64.0, 0.0] && value(&page, "kv_cache_usage_perc") == 0.0 {
            break;
        }
        assert!(Instant::now() < until, "{slots:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
