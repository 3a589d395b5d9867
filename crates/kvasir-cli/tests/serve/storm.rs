//! Attacks of one API key, all at once: probes and another key's requests are answered meanwhile, and
//! memory stays within what SECURITY.md states.

use crate::memory::{peak, resident};
use crate::server::{Answer, CHAT, JSON, Server, chat, connect};
use serde_json::{Value, json};
use std::{
    io::Write,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

/// Connections per attack.
const CONNECTIONS: usize = 6;
/// Rounds of probes and requests that must be answered during the storm.
const ROUNDS: usize = 12;

/// Path and body of each attack.
fn attacks() -> Vec<(&'static str, Value)> {
    let nested = "{% for i in range(4000) %}{% for j in range(4000) %}{% endfor %}{% endfor %}";
    let messages = json!([{"role": "user", "content": "hello"}]);
    let formula = json!({"latex": "{".repeat(1000)});
    let many: Vec<Value> = (0..400_000).map(|_| json!([])).collect();
    vec![
        (CHAT, chat(json!({"chat_template": nested}))),
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

fn is_live(address: &str) -> bool {
    let mut stream = connect(address);
    write!(stream, "GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    Answer::read(stream).status == 200
}

#[test]
fn a_storm_of_one_key_leaves_probes_and_others_answered() {
    let server = Server::start("storm", &["--api-key", "attacker,other", "--health-port", "0"]);
    let (process, probes) = (server.process.id(), server.probes.clone().unwrap());
    assert_eq!(with_key(&server, "other", CHAT, &chat(json!({})).to_string()).status, 200);
    let before = resident(process);
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let attacks: Vec<(&str, String)> =
        attacks().into_iter().map(|(path, body)| (path, body.to_string())).collect();
    thread::scope(|scope| {
        for (path, body) in attacks.iter().flat_map(|attack| [attack; CONNECTIONS]) {
            let (server, is_over, answered) = (&server, &is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let status = with_key(server, "attacker", path, body).status;
                    assert!([200, 400, 413, 429, 503].contains(&status), "{path}: {status}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..ROUNDS {
            assert!(is_live(&server.address) && is_live(&probes), "round {round}");
            for (path, body) in
                [("/tokenize", json!({"prompt": "hi"})), (CHAT, chat(json!({"max_tokens": 2})))]
            {
                let answer = with_key(&server, "other", path, &body.to_string());
                assert_eq!(answer.status, 200, "round {round}, {path}: {}", answer.body);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(answered.load(Ordering::Relaxed) >= CONNECTIONS, "the storm took place");
    let grown = peak(process).saturating_sub(before);
    assert!(grown < 1600 << 20, "{} MiB at most", grown >> 20);
}
