//! Client disconnects at random points: nothing of an abandoned request remains in the KV cache.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_testkit::Random;
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn ten_thousand_disconnects_leak_no_slots() {
    const SLOTS: u32 = 160;
    let server = Server::start(CacheKind::Radix, SLOTS, &[]);
    let mut random = Random::new(1);
    let mut sent = 0;
    // Eight at a time, so that some are queued, some in prefill and some in decode when they
    // disconnect.
    for _ in 0..10_000 / 8 {
        let leavers: Vec<_> = (0..8)
            .map(|_| {
                let prompt: Vec<u64> = (0..1 + random.below(48)).map(|_| 10 + random.below(400)).collect();
                let n = 1 + random.below(2);
                let body = json!({
                    "prompt": prompt, "stream": true, "n": n, "max_tokens": 20 + random.below(60), "ignore_eos": true
                });
                (body, random.below(3) as usize)
            })
            .collect();
        sent += leavers.len();
        server.leave("/v1/completions", leavers);
    }
    assert_eq!(sent, 10_000);
    // The last request finds the whole pool free: it takes every slot, and stale state does not
    // show.
    let prompt: Vec<u32> = (0..SLOTS - 8).map(|i| 10 + i % 397).collect();
    let whole = json!({"prompt": prompt, "max_tokens": 8, "ignore_eos": true, "cache_salt": "last"});
    let (status, answer) = server.post("/v1/completions", &whole);
    assert_eq!(status, 200, "{answer}");
    let fresh = Server::start(CacheKind::Radix, SLOTS, &[]).post("/v1/completions", &whole).1;
    assert_eq!(answer["choices"], fresh["choices"]);
    assert_eq!(metric(&server, "kvasir:num_requests_open"), 0.0);
    let aborted =
        metric(&server, "kvasir:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"");
    assert!(aborted > 100.0, "{aborted}");
}

fn metric(server: &Server, name: &str) -> f64 {
    let (_, page) = server.send("GET", "/metrics", "", "");
    let line = page.as_str().unwrap().lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn gauges_drop_after_the_last_disconnect() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = json!({"prompt": [20, 21, 22], "stream": true, "max_tokens": 400, "ignore_eos": true});
    server.leave("/v1/completions", vec![(body, 2)]);
    let busy = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"];
    let soon = Instant::now() + Duration::from_secs(60);
    while busy.iter().any(|name| metric(&server, &format!("kvasir:{name}")) > 0.0) {
        assert!(Instant::now() < soon, "it still looks busy");
    }
}
