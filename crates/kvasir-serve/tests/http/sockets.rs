//! `/v1/responses` over a WebSocket, on real sockets.

use super::server::Server;
use kvasir_kv::CacheKind;
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// A client of a WebSocket. Its masks are zero, so that payloads are sent as they are.
struct Client(TcpStream);

impl Client {
    /// Opens a WebSocket; fails with the head of any response but 101.
    fn open(address: SocketAddr, headers: &str) -> Result<Self, String> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            stream,
            "GET /v1/responses HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        if head.starts_with("HTTP/1.1 101") { Ok(Self(stream)) } else { Err(head) }
    }

    fn send(&mut self, message: &Value) {
        let text = message.to_string();
        let mut frame = vec![0x81, 0x80 | 126];
        frame.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(text.as_bytes());
        self.0.write_all(&frame).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length).unwrap();
                usize::from(u16::from_be_bytes(length))
            }
            short => usize::from(short),
        };
        let mut text = vec![0; length];
        self.0.read_exact(&mut text).unwrap();
        assert_eq!(head[0], 0x81, "{}", String::from_utf8_lossy(&text));
        serde_json::from_slice(&text).unwrap()
    }

    /// The events of one response.
    fn events(&mut self) -> Vec<Value> {
        let mut events = vec![self.receive()];
        let ends = ["response.completed", "response.incomplete", "response.failed", "error"];
        while !ends.iter().any(|end| events.last().unwrap()["type"] == *end) {
            events.push(self.receive());
        }
        events
    }
}

fn create(extra: Value) -> Value {
    let mut message = json!({"type": "response.create", "input": "hello", "max_output_tokens": 8});
    message.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    message
}

#[test]
fn responses_come_one_after_the_other() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let mut client = Client::open(server.listen(16), "").unwrap();
    client.send(&create(json!({"store": false})));
    client.send(&create(json!({"stream": true})));
    let (first, second) = (client.events(), client.events());
    for events in [&first, &second] {
        assert_eq!(events[0]["type"], "response.created");
        let numbers: Vec<_> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    }
    let plain = server.events("/v1/responses", &create(json!({"stream": true})));
    let types = |events: &[Value]| events.iter().map(|event| event["type"].clone()).collect::<Vec<_>>();
    assert_eq!(types(&plain)[0], types(&second)[0]);
    let stored = format!("/v1/responses/{}", second[0]["response"]["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &stored, "", "").0, 200);
    let hidden = format!("/v1/responses/{}", first[0]["response"]["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &hidden, "", "").0, 404);
}

#[test]
fn a_connection_continues_what_it_does_not_store() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let address = server.listen(16);
    let mut client = Client::open(address, "").unwrap();
    client.send(&create(json!({"store": false})));
    let first = client.events().pop().unwrap()["response"].clone();
    let next = create(json!({"store": false, "previous_response_id": first["id"]}));
    client.send(&next);
    let second = client.events().pop().unwrap()["response"].clone();
    let tokens = |response: &Value| response["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&second) > tokens(&first));
    let mut other = Client::open(address, "").unwrap();
    other.send(&next);
    let error = other.events().pop().unwrap();
    assert_eq!((&error["type"], &error["status"]), (&json!("error"), &json!(400)));
    assert_eq!(error["error"]["param"], "previous_response_id");
}

#[test]
fn a_warm_up_prefills_what_a_later_response_continues() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let mut client = Client::open(server.listen(16), "").unwrap();
    let instructions = "one two three four five six. ".repeat(9);
    let warm_up = json!({"generate": false, "instructions": instructions});
    let mut without_input = create(warm_up.clone());
    without_input.as_object_mut().unwrap().remove("input");
    for message in [create(warm_up), without_input] {
        let mut message = message;
        message["store"] = false.into();
        client.send(&message);
        let events = client.events();
        let types: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
        assert_eq!(types, ["response.created", "response.in_progress", "response.completed"]);
        let warm = &events[2]["response"];
        assert_eq!((&warm["status"], &warm["output"]), (&json!("completed"), &json!([])), "{warm}");
        let tokens = |response: &Value, name: &str| response["usage"][name].as_u64().unwrap();
        assert_eq!(tokens(warm, "output_tokens"), 0);
        let next =
            json!({"instructions": instructions, "previous_response_id": warm["id"], "input": "go on"});
        client.send(&create(next));
        let next = client.events().pop().unwrap()["response"].clone();
        let cached = next["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let prefilled = tokens(warm, "input_tokens");
        assert!(tokens(&next, "input_tokens") > prefilled && cached + 16 > prefilled, "{next} {warm}");
    }
    // A warm-up adds no turn to its session.
    let session = server.post("/v1/sessions", &json!({})).1["id"].clone();
    client.send(&create(json!({"generate": false, "session": session})));
    assert_eq!(client.events().pop().unwrap()["response"]["status"], "completed");
    let shown = server.send("GET", &format!("/v1/sessions/{}", session.as_str().unwrap()), "", "").1;
    assert_eq!(shown["messages"], 0, "{shown}");
    for (extra, param) in [
        (json!({"generate": "no"}), "generate"),
        (json!({"generate": false, "conversation": "ID"}), "conversation"),
    ] {
        let id = server.post("/v1/conversations", &json!({})).1["id"].clone();
        let mut message = create(extra);
        message.as_object_mut().unwrap().entry("conversation").and_modify(|value| *value = id);
        client.send(&message);
        let error = client.receive();
        assert_eq!((&error["type"], &error["error"]["param"]), (&json!("error"), &json!(param)), "{error}");
    }
    let (status, error) = server.post("/v1/responses", &json!({"input": []}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("input")));
}

#[test]
fn wrong_messages_are_errors_and_the_connection_stays() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let mut client = Client::open(server.listen(16), "").unwrap();
    for (message, param) in [
        (json!({"type": "response.append"}), "type"),
        (create(json!({"temperature": 900})), "temperature"),
        (create(json!({"background": true})), "background"),
        (json!("hello"), ""),
    ] {
        client.send(&message);
        let error = client.receive();
        assert_eq!(error["type"], "error", "{error}");
        assert_eq!(error["error"]["param"].as_str().unwrap_or_default(), param, "{error}");
    }
    client.send(&create(json!({})));
    assert!(client.events().len() > 3);
}

#[test]
fn pages_of_other_origins_and_strangers_are_refused() {
    let server = Server::start(CacheKind::Radix, 512, &["secret"]);
    let address = server.listen(16);
    let key = "Authorization: Bearer secret\r\n";
    assert!(Client::open(address, key).is_ok());
    assert!(Client::open(address, &format!("{key}Origin: http://{address}\r\n")).is_ok());
    let refused = |headers: &str| Client::open(address, headers).map(|_| ()).unwrap_err();
    assert!(refused("").starts_with("HTTP/1.1 401"));
    assert!(refused(&format!("{key}Origin: https://evil.example\r\n")).starts_with("HTTP/1.1 403"));
    let (status, error) = server.send("GET", "/v1/responses", "secret", "");
    assert_eq!((status, &error["error"]["param"]), (426, &json!("upgrade")), "{error}");
}
