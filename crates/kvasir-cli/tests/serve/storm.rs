//! Attacks of one API key, all at once: probes and another key's requests are answered meanwhile, and
//! memory stays within what SECURITY.md states.
//!
//! A probe should be answered within [`TARGET`]. The test's own clients and other tests share the
//! processors with the server, so up to a quarter of the answers may be late, and none may take
//! [`LATEST`].

use crate::memory::{peak, resident};
use crate::server::{Answer, CHAT, JSON, Server, chat, connect, head};
use serde_json::{Value, json};
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Connections per attack.
const CONNECTIONS: usize = 4;
/// Time within which a probe should be answered.
const TARGET: Duration = Duration::from_millis(100);
/// Time within which every probe must be answered.
const LATEST: Duration = Duration::from_secs(5);
/// Streams that the attacker opens and does not read.
const UNREAD: usize = 200;
/// Rounds of probes and requests that must be answered during the storm.
const ROUNDS: usize = 16;
/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(150);

/// Path and body of each attack.
fn attacks() -> Vec<(&'static str, Value)> {
    let nested = "{% for i in range(4000) %}{% for j in range(4000) %}{% endfor %}{% endfor %}";
    let messages = json!([{"role": "user", "content": "hello"}]);
    let formula = json!({"latex": "{".repeat(1000)});
    let many: Vec<Value> = (0..400_000).map(|_| json!([])).collect();
    let ambiguous = "root ::= root root | \"a\" | \"b\" | [a-z]+";
    vec![
        (CHAT, chat(json!({"chat_template": nested}))),
        (CHAT, chat(json!({"grammar": ambiguous, "max_tokens": 200}))),
        ("/apply-template", json!({"messages": messages, "chat_template": nested})),
        ("/v1/chat/completions/input_tokens", json!({"messages": messages, "chat_template": nested})),
        ("/tokenize", json!({"prompt": "! ".repeat(400 << 10), "with_pieces": true})),
        ("/page/math", json!({"items": vec![formula; 256]})),
        (CHAT, chat(json!({"metadata": {"a": many}}))),
    ]
}

fn with_key(server: &Server, key: &str, path: &str, body: &str) -> Answer {
    server.exchange("POST", path, &format!("{JSON}Authorization: Bearer {key}\r\n"), body)
}

/// Time that `/live` takes, with its connection.
fn probe(address: &str) -> Duration {
    let began = Instant::now();
    let mut stream = connect(address);
    write!(stream, "GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(Answer::read(stream).status, 200);
    began.elapsed()
}

/// Sends an attack; returns the status of its answer, or `None` if the storm ends first and it
/// closes the connection.
fn attack(server: &Server, path: &str, body: &str, is_over: &AtomicBool) -> Option<u16> {
    let mut stream = send_unread(server, path, body, body.len());
    stream.set_read_timeout(Some(PAUSE)).unwrap();
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&part[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if is_over.load(Ordering::Relaxed) {
                    return None;
                }
            }
            // The server has refused the body and closed the connection.
            Err(_) => break,
        }
    }
    let line = String::from_utf8_lossy(&answer[..answer.len().min(20)]).into_owned();
    Some(line.split(' ').nth(1).unwrap_or_else(|| panic!("{path}: {line:?}")).parse().unwrap())
}

/// Sends a request of the attacker without reading the answer.
fn send_unread(server: &Server, path: &str, body: &str, length: usize) -> TcpStream {
    let mut stream = server.connect();
    // The server may refuse it before it is written.
    let _ = write!(stream, "{}{body}", head(path, "Authorization: Bearer attacker\r\n", length));
    stream
}

/// Opens streams with log-probabilities and parallel samples without reading them, and sends half
/// of some bodies.
fn stalled_requests(server: &Server) -> Vec<TcpStream> {
    let wanted =
        json!({"stream": true, "max_tokens": 400, "ignore_eos": true, "logprobs": true, "top_logprobs": 20});
    let body = chat(wanted).to_string();
    let streams = (0..UNREAD).map(|_| send_unread(server, CHAT, &body, body.len()));
    let many = chat(json!({"n": 128, "max_tokens": 400, "ignore_eos": true})).to_string();
    let samples = (0..CONNECTIONS).map(|_| send_unread(server, CHAT, &many, many.len()));
    let half = format!("{{\"model\": \"{}", " ".repeat(4 << 20));
    let stalled = (0..CONNECTIONS).map(|_| send_unread(server, CHAT, &half, 8 << 20));
    streams.chain(samples).chain(stalled).collect()
}

/// Ends the attacks on drop, also when an assertion fails.
struct StormEnd<'a>(&'a AtomicBool);

impl Drop for StormEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Body of a request that pins a new prefix.
fn pinning_body(n: usize) -> String {
    let text = format!("{n} {}", "one two three ".repeat(12));
    let block = json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let message = json!({"role": "user", "content": "hello"});
    json!({"model": "tiny", "max_tokens": 1, "system": [block], "messages": [message]}).to_string()
}

#[test]
fn a_storm_of_one_key_leaves_probes_and_others_answered() {
    let options = ["--order", "fair", "--max-requests-per-key", "900", "--health-port", "0"];
    let server = Server::start("storm", &[&["--api-key", "attacker,other"], &options[..]].concat());
    let (process, probes) = (server.process.id(), server.probes.clone().unwrap());
    assert_eq!(with_key(&server, "other", CHAT, &chat(json!({})).to_string()).status, 200);
    let before = resident(process);
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let attacks: Vec<(&str, String)> =
        attacks().into_iter().map(|(path, body)| (path, body.to_string())).collect();
    let mut probed: Vec<Duration> = Vec::new();
    thread::scope(|scope| {
        let _end = StormEnd(&is_over);
        let _stalled = stalled_requests(&server);
        scope.spawn(|| {
            for n in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let status = attack(&server, "/v1/messages", &pinning_body(n), &is_over);
                assert!([None, Some(200), Some(429), Some(503)].contains(&status), "pins: {status:?}");
            }
        });
        for (path, body) in attacks.iter().flat_map(|attack| [attack; CONNECTIONS]) {
            let (server, is_over, answered) = (&server, &is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let Some(status) = attack(server, path, body, is_over) else { return };
                    assert!([200, 400, 413, 429, 503].contains(&status), "{path}: {status}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..ROUNDS {
            thread::sleep(PAUSE);
            probed.extend([&server.address, &probes].map(|address| probe(address)));
            for (path, body) in
                [("/tokenize", json!({"prompt": "hi"})), (CHAT, chat(json!({"max_tokens": 2})))]
            {
                let answer = with_key(&server, "other", path, &body.to_string());
                assert_eq!(answer.status, 200, "round {round}, {path}: {}", answer.body);
                probed.extend([&server.address, &probes].map(|address| probe(address)));
            }
        }
    });
    let late = probed.iter().filter(|time| **time > TARGET).count();
    assert!(late * 4 <= probed.len() && probed.iter().all(|time| *time < LATEST), "/live: {probed:?}");
    assert!(answered.load(Ordering::Relaxed) > 0, "the storm took place");
    let grown = peak(process).saturating_sub(before);
    assert!(grown < 1600 << 20, "{} MiB at most", grown >> 20);
}
