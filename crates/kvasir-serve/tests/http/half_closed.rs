//! Clients that shut down their writing side behind a request, or leave, over real sockets; and clients
//! that leave while their prompt is encoded.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_sim::Toy;
use serde_json::json;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::mpsc::Sender,
    thread::sleep,
    time::{Duration, Instant},
};

/// Longer than the server takes to look for a client whose stream has ended.
const PROBED: Duration = Duration::from_millis(900);

/// A server whose next step waits for the sender.
fn hanging() -> (Server, SocketAddr, Sender<()>) {
    let mut device = Toy::new();
    let release = device.hang_next();
    let server = Server::on(device, CacheKind::Radix, 512, &[]);
    let address = server.listen(16);
    (server, address, release)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn send(mut stream: &TcpStream, version: &str, body: &str) {
    let length = body.len();
    write!(
        stream,
        "POST /v1/completions {version}\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
}

fn body(stream: bool) -> String {
    json!({"prompt": [20, 21, 22], "max_tokens": 8, "ignore_eos": true, "stream": stream}).to_string()
}

fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

fn metric(server: &Server, name: &str) -> f64 {
    let (_, page) = server.send("GET", "/metrics", "", "");
    let line = page.as_str().unwrap().lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn aborted(server: &Server) -> f64 {
    metric(server, "kvasir:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"")
}

fn idle(server: &Server) {
    let end = Instant::now() + Duration::from_secs(60);
    while metric(server, "kvasir:num_requests_open") > 0.0 {
        assert!(Instant::now() < end, "a request is still open");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn half_closed_clients_get_their_answer() {
    for (version, streams) in [("HTTP/1.1", false), ("HTTP/1.1", true), ("HTTP/1.0", false)] {
        let (server, address, release) = hanging();
        let client = connect(address);
        send(&client, version, &body(streams));
        client.shutdown(Shutdown::Write).unwrap();
        sleep(PROBED);
        release.send(()).unwrap();
        let answer = rest(client);
        assert!(answer.contains(" 200 OK\r\n"), "{version}: {answer:?}");
        assert!(answer.contains("\"length\""), "{version}: {answer:?}");
        // Interim responses are for clients that know them.
        assert!(version == "HTTP/1.1" || !answer.contains("100 Continue"), "{answer:?}");
        idle(&server);
        assert_eq!(aborted(&server), 0.0);
    }
}

#[test]
fn clients_that_leave_are_found_out() {
    for reused in [false, true] {
        let (server, address, release) = hanging();
        let client = connect(address);
        if reused {
            let request = "GET /live HTTP/1.1\r\nHost: x\r\n\r\n";
            (&client).write_all(request.as_bytes()).unwrap();
            let mut head = [0; 512];
            assert!((&client).read(&mut head).unwrap() > 0);
        }
        send(&client, "HTTP/1.1", &body(false));
        sleep(Duration::from_millis(100));
        drop(client);
        sleep(PROBED);
        release.send(()).unwrap();
        idle(&server);
        assert_eq!(aborted(&server), 1.0, "on a connection reused: {reused}");
    }
}

#[test]
fn truncated_bodies_are_no_half_closed_requests() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let client = connect(server.listen(16));
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{";
    (&client).write_all(head.as_bytes()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let start = Instant::now();
    assert!(!rest(client).contains("200 OK"));
    assert!(start.elapsed() < Duration::from_secs(10), "the end is not held back");
}

#[test]
fn prompts_beyond_the_context_are_refused_by_their_bytes() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let text = "hello there ".repeat(100_000);
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": text}), "prompt"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]}), "messages"),
        ("/v1/responses", json!({"input": text}), "input"),
        ("/v1/sessions", json!({"prompt": text}), "prompt"),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, &error["param"]), (400, &param.into()), "{path}: {answer}");
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
        assert!(error["message"].as_str().unwrap().contains("bytes"), "{path}: {error}");
    }
    // What is truncated, or only counted, may be longer.
    let truncated =
        json!({"prompt": text, "truncate_prompt_tokens": 20, "max_tokens": 2, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &truncated).0, 200);
    assert_eq!(server.post("/tokenize", &json!({"prompt": text})).0, 200);
}

#[test]
fn encoding_ends_when_its_client_leaves() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let address = server.listen(64);
    let body = json!({"prompt": "a1 b2 c3 ".repeat(1 << 17), "truncate_prompt_tokens": 5, "max_tokens": 1});
    let body = body.to_string();
    let began = Instant::now();
    let client = connect(address);
    send(&client, "HTTP/1.0", &body);
    assert!(rest(client).contains("200 OK"));
    let whole = began.elapsed();
    let began = Instant::now();
    for _ in 0..24 {
        let client = connect(address);
        send(&client, "HTTP/1.1", &body);
        drop(client);
    }
    // Waits for all encodings that have begun.
    drop(server);
    let left = began.elapsed();
    // Two cores would take twelve times as long if nothing ended early; a loaded machine needs a margin.
    assert!(left < whole * 9, "24 abandoned prompts took {left:?}, one alone {whole:?}");
}
