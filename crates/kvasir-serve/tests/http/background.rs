//! Background mode over HTTP: responses are completed without a client, streamed again from any
//! event on, and canceled.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::{
    sync::mpsc::Sender,
    thread::sleep,
    time::{Duration, Instant},
};

fn body(stream: bool) -> Value {
    json!({"input": "hello", "max_output_tokens": 40, "background": true, "stream": stream})
}

fn path(response: &Value) -> String {
    format!("/v1/responses/{}", response["id"].as_str().unwrap())
}

/// The response once it is no longer in progress.
fn ended(server: &Server, path: &str) -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let (status, response) = server.send("GET", path, "", "");
        assert_eq!(status, 200, "{response}");
        if response["status"] != "in_progress" {
            return response;
        }
        assert!(Instant::now() < end, "it is still in progress");
        sleep(Duration::from_millis(5));
    }
}

/// Number of requests that the engine has aborted.
fn aborted(server: &Server) -> f64 {
    metric(server, "kvasir:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"")
}

/// The first value of a metric whose line begins with `name`.
fn metric(server: &Server, name: &str) -> f64 {
    let (_, page) = server.send("GET", "/metrics", "", "");
    let line = page.as_str().unwrap().lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A server whose next step waits for the sender.
fn hanging() -> (Server, Sender<()>) {
    let mut device = Toy::new();
    let release = device.hang_next();
    (Server::on(device, CacheKind::Radix, 512, &[]), release)
}

#[test]
fn a_response_goes_on_when_its_client_has_left() {
    let (server, release) = hanging();
    // The client leaves behind the first events.
    server.leave("/v1/responses", vec![(body(true), 1)]);
    let (_, begun) = server.post("/v1/responses", &body(false));
    assert_eq!((&begun["status"], &begun["background"]), (&json!("in_progress"), &json!(true)), "{begun}");
    let next = json!({"input": "and?", "previous_response_id": begun["id"]});
    let (status, refused) = server.post("/v1/responses", &next);
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("previous_response_id")), "{refused}");
    release.send(()).unwrap();
    let done = ended(&server, &path(&begun));
    assert!(done["output"][0]["content"][0]["text"].is_string(), "{done}");
    let (status, answer) = server.post("/v1/responses", &next);
    assert_eq!(status, 200, "{answer}");
    let (_, items) = server.send("GET", &format!("{}/input_items", path(&begun)), "", "");
    assert_eq!(items["data"].as_array().unwrap().len(), 1);
    // Both responses have ended, that without a client too.
    assert_eq!(aborted(&server), 0.0);
}

#[test]
fn events_are_streamed_again_from_any_number_on() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let events = server.events("/v1/responses", &body(true));
    let numbers: Vec<_> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let path = path(&events[0]["response"]);
    let again = |after: &str| {
        let (status, text) = server.send("GET", &format!("{path}?stream=true{after}"), "", "");
        assert_eq!(status, 200, "{text}");
        let lines = text.as_str().unwrap_or_default().lines().filter_map(|line| line.strip_prefix("data: "));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    assert_eq!(again(""), events);
    assert_eq!(again("&starting_after=3"), events[4..]);
    assert_eq!(again(&format!("&starting_after={}", events.len() - 1)), Vec::<Value>::new());
    assert_eq!(ended(&server, &path), events.last().unwrap()["response"]);
    let (status, error) = server.send("GET", &format!("{path}?starting_after=3"), "", "");
    assert_eq!((status, &error["error"]["param"]), (400, &json!("starting_after")));
}

#[test]
fn a_canceled_response_ends_and_stays_canceled() {
    let (server, release) = hanging();
    let (_, begun) = server.post("/v1/responses", &body(false));
    let path = path(&begun);
    for _ in 0..2 {
        let (status, canceled) = server.send("POST", &format!("{path}/cancel"), "", "");
        assert_eq!((status, &canceled["status"]), (200, &json!("cancelled")), "{canceled}");
    }
    let (_, events) = server.send("GET", &format!("{path}?stream=true&starting_after=1"), "", "");
    assert!(events.as_str().unwrap().starts_with("event: response.cancelled\n"), "{events}");
    release.send(()).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    // Aborted, unless the answer was complete before the abort reached the engine.
    while metric(&server, "kvasir:num_requests_open") > 0.0 {
        assert!(Instant::now() < end, "the engine still generates");
        sleep(Duration::from_millis(5));
    }
    assert_eq!(ended(&server, &path)["status"], "cancelled");
    let (_, plain) = server.post("/v1/responses", &json!({"input": "hello", "max_output_tokens": 2}));
    let id = plain["id"].as_str().unwrap();
    let (status, error) = server.send("POST", &format!("/v1/responses/{id}/cancel"), "", "");
    assert_eq!((status, &error["error"]["param"]), (400, &json!("response_id")), "{error}");
    let hidden = json!({"input": "hello", "background": true, "store": false});
    let (status, error) = server.post("/v1/responses", &hidden);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("background")), "{error}");
}
