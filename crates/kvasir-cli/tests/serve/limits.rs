//! Admission limits and fairness: 429, 503, `--order fair`, probes. On a slow simulated device, so
//! that nothing finishes early.

use super::server::{Answer, CHAT, COMPLETIONS, JSON, Server, chat, head, model};
use serde_json::json;
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

/// A step takes 200 ms, an answer of 900 tokens three minutes.
const SLOW: &[&str] = &["--backend", "sim", "--sim-preset", "fixed:200ms", "--max-model-len", "1024"];

fn slow(name: &str, options: &[&str]) -> Server {
    Server::start(name, &[SLOW, options].concat())
}

fn key(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

/// Sends a chat that must be rejected with 429; returns the error code.
fn turned_away(server: &Server, name: &str) -> String {
    let headers = JSON.to_owned() + &key(name);
    let answer = server.exchange("POST", "/v1/chat/completions", &headers, &chat(json!({})).to_string());
    assert_eq!(answer.status, 429, "{}", answer.body);
    assert!(answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|s| s > 0)));
    answer.json()["error"]["code"].as_str().unwrap().to_owned()
}

fn metric(server: &Server, headers: &str, name: &str) -> f64 {
    let (status, page) = server.send("GET", "/metrics", headers, "");
    assert_eq!(status, 200);
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn requests_beyond_limits_get_retry_after() {
    let server =
        slow("limits", &["--api-key", "one,two,three", "--max-requests", "2", "--max-requests-per-key", "1"]);
    let first = server.streaming(&key("one"), json!({"max_tokens": 900}));
    assert_eq!(turned_away(&server, "one"), "rate_limit_exceeded");
    let second = server.streaming(&key("two"), json!({"max_tokens": 900}));
    assert_eq!(turned_away(&server, "three"), "rate_limit_exceeded");
    let rejected = |why: &str| {
        let name = format!("kvasir:admission_rejections_total{{model_name=\"tiny\",reason=\"{why}\"");
        metric(&server, &key("one"), &name)
    };
    assert_eq!((rejected("key_limit"), rejected("queue_full")), (1.0, 1.0));
    // Disconnecting frees the place.
    drop((first, second));
    while metric(&server, &key("one"), "kvasir:num_requests_open") > 0.0 {
        thread::sleep(Duration::from_millis(10));
    }
    drop(server.streaming(&key("three"), json!({"max_tokens": 900})));
}

#[test]
fn tokens_under_way_are_bounded_too() {
    let options = ["--max-request-tokens", "1024", "--metrics-alias", "vllm"];
    let server = slow("tokens", &options);
    let _first = server.streaming("", json!({"max_tokens": 900}));
    let body = json!({"prompt": vec![7; 200], "max_tokens": 5}).to_string();
    let answer = server.exchange("POST", COMPLETIONS, JSON, &body);
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{}", answer.body);
    let rejected = "vllm:admission_rejections_total{model_name=\"tiny\",reason=\"tokens_waiting\"";
    assert_eq!(metric(&server, "", rejected), 1.0);
    assert_eq!(metric(&server, "", "vllm:num_requests_running"), 1.0);
}

#[test]
fn a_connection_beyond_the_limit_gets_503() {
    let server = slow("connections-limit", &["--max-connections", "1"]);
    let first = server.streaming("", json!({"max_tokens": 900}));
    // A client with a large body can write it completely before it reads the error.
    for length in [0, 20_000_000] {
        let mut stream = server.connect();
        stream.write_all((head(COMPLETIONS, "", length) + &" ".repeat(length)).as_bytes()).unwrap();
        let answer = Answer::read(stream);
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
        assert_eq!(answer.json()["error"]["code"], "unavailable");
    }
    drop(first);
    while server.exchange("GET", "/live", "", "").status != 200 {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn keys_share_the_server_fairly() {
    let server = slow("fair", &["--api-key", "much,little", "--order", "fair", "--max-num-seqs", "1"]);
    let plug = server.streaming(&key("much"), json!({"max_tokens": 900}));
    let complete = |name: &str, max_tokens: u32| {
        let body = json!({"prompt": vec![7; 600], "max_tokens": max_tokens, "ignore_eos": true});
        server.exchange("POST", COMPLETIONS, &(JSON.to_owned() + &key(name)), &body.to_string()).status
    };
    let waiting = |count: f64| {
        while metric(&server, &key("much"), "kvasir:num_requests_open") < count {
            thread::sleep(Duration::from_millis(10));
        }
    };
    thread::scope(|scope| {
        let short: Vec<_> = (0..4).map(|_| scope.spawn(|| complete("much", 1))).collect();
        waiting(5.0);
        // The last one runs for longer than the test can take.
        let mut long = server.connect();
        let body = json!({"prompt": vec![7; 600], "max_tokens": 400, "ignore_eos": true}).to_string();
        let request = head(COMPLETIONS, &key("much"), body.len()) + &body;
        long.write_all(request.as_bytes()).unwrap();
        waiting(6.0);
        let little = scope.spawn(|| complete("little", 1));
        waiting(7.0);
        drop(plug);
        assert_eq!(little.join().unwrap(), 200);
        // Not streamed, so its first byte arrives at its end.
        long.set_nonblocking(true).unwrap();
        assert!(long.read(&mut [0]).is_err(), "the newcomer came last");
        short.into_iter().for_each(|job| assert_eq!(job.join().unwrap(), 200));
    });
}

#[test]
fn one_key_cannot_open_all_requests() {
    let server = slow("places", &["--api-key", "much,little", "--order", "fair", "--max-requests", "8"]);
    let _open: Vec<_> = (0..6).map(|_| server.streaming(&key("much"), json!({"max_tokens": 90}))).collect();
    assert_eq!(turned_away(&server, "much"), "rate_limit_exceeded");
    drop(server.streaming(&key("little"), json!({"max_tokens": 90})));
}

/// Silent connections for all places and the whole reserve.
fn silent(server: &Server, places: usize) -> Vec<TcpStream> {
    (0..places + 64).map(|_| server.connect()).collect()
}

#[test]
fn probes_are_answered_when_all_connections_are_taken() {
    let server = slow("probes", &["--max-connections", "4"]);
    let _silent = silent(&server, 4);
    for path in ["/live", "/health"] {
        assert_eq!(server.exchange("GET", path, "", "").status, 200, "{path}");
    }
    assert_eq!(server.exchange("GET", "/v1/models", "", "").status, 503);
}

#[test]
fn a_port_of_their_own_answers_probes_without_a_key() {
    let environment = [("KVASIR_HEALTH_PORT", "0")];
    let options = [SLOW, &["--max-connections", "4", "--api-key", "secret"]].concat();
    let mut server = Server::start_with("health-port", &options, &environment);
    let _silent = silent(&server, 4);
    let main = std::mem::replace(&mut server.address, server.probes.clone().unwrap());
    for (path, status) in [("/live", 200), ("/health", 200), ("/metrics", 404), ("/v1/models", 404)] {
        assert_eq!(server.exchange("GET", path, "", "").status, status, "{path}");
    }
    let message =
        |server: &Server| server.exchange("GET", "/other", "", "").json()["error"]["message"].clone();
    assert_eq!(message(&server), "this listener has /live, /health and /ready only");
    server.address = main;
    let mut server = slow("health-metrics", &["--health-port", "0"]);
    let main = std::mem::replace(&mut server.address, server.probes.clone().unwrap());
    assert_eq!(message(&server), "this listener has /live, /health, /ready and /metrics only");
    server.address = main;
}

#[test]
fn rates_are_kept_per_key_and_told_in_headers() {
    let folder = model("rates");
    let file = folder.join("keys.txt");
    std::fs::write(&file, "alice: one\nalice: uno # the next one\nbob: two\ncarol: three\n").unwrap();
    // A repetition changes nothing.
    let options = ["--api-key-file", file.to_str().unwrap(), "--api-key", "four,four"];
    let limits = [("KVASIR_RATE_LIMIT", "alice:2,100000 carol:1,100000")];
    let server = Server::start_with("rates", &options, &limits);
    let complete = |key: &str| {
        let headers = format!("{JSON}Authorization: Bearer {key}\r\n");
        server.exchange("POST", CHAT, &headers, &chat(json!({})).to_string())
    };
    let first = complete("one");
    assert_eq!((first.status, first.header("x-ratelimit-limit-requests")), (200, Some("2")));
    assert_eq!(first.header("x-ratelimit-remaining-requests"), Some("1"));
    assert_eq!(complete("one").status, 200);
    let third = complete("one");
    assert_eq!((third.status, third.json()["error"]["type"].clone()), (429, json!("rate_limit_error")));
    let wait: u32 = third.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31).contains(&wait), "{wait}");
    for _ in 0..4 {
        let other = complete("two");
        assert_eq!((other.status, other.header("x-ratelimit-limit-requests")), (200, None));
    }
    assert_eq!((complete("uno").status, complete("four").status), (200, 200));
    assert_eq!((complete("three").status, complete("three").status), (200, 429));
    let rejected = "kvasir:admission_rejections_total{model_name=\"tiny\",reason=\"key_rate\"";
    assert_eq!(metric(&server, &key("two"), rejected), 2.0);
}
