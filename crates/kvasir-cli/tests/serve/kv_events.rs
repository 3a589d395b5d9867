//! `kvasir serve --kv-events` and `--load-events`: subscribers get the cached prefixes and the load
//! of one engine and of each worker.

use super::server::{COMPLETIONS, Server};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    io::BufRead,
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, time::timeout};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// A stream of KV events: its subscription, and the address of its replays.
struct Stream {
    subscription: SubSocket,
    replay: String,
    /// Batches by number, as JSON.
    batches: Vec<(i64, Value)>,
}

impl Stream {
    async fn open(events: &str, replay: &str) -> Self {
        let mut subscription = SubSocket::new();
        subscription.connect(events).await.unwrap();
        subscription.subscribe("kv@pod").await.unwrap();
        Self { subscription, replay: replay.into(), batches: Vec::new() }
    }

    /// Receives batches until there are none for some time.
    async fn receive(&mut self) {
        while let Ok(message) = timeout(Duration::from_millis(500), self.subscription.recv()).await {
            let frames = message.unwrap().into_vec();
            assert_eq!((frames.len(), &frames[0][..]), (3, &b"kv@pod@tiny"[..]));
            self.batches.push(batch(&frames[1], &frames[2]));
        }
    }

    /// All kept batches.
    async fn replayed(&self) -> Vec<(i64, Value)> {
        let mut dealer = DealerSocket::new();
        dealer.connect(&self.replay).await.unwrap();
        dealer.send(ZmqMessage::from(vec![0; 8])).await.unwrap();
        let mut batches = Vec::new();
        loop {
            let frames = timeout(Duration::from_secs(20), dealer.recv()).await.unwrap().unwrap().into_vec();
            if frames[0][..] == [255; 8] {
                return batches;
            }
            batches.push(batch(&frames[0], &frames[1]));
        }
    }

    /// Blocks that are cached according to the events: their first tokens by hash.
    fn cached(&self) -> HashMap<u64, Value> {
        let mut blocks = HashMap::new();
        for event in self.batches.iter().flat_map(|(_, batch)| batch[1].as_array().unwrap()) {
            let hashes = event["block_hashes"].as_array().into_iter().flatten();
            let hashes = hashes.map(|hash| hash.as_u64().unwrap());
            match event["type"].as_str().unwrap() {
                "BlockStored" => {
                    let size = event["block_size"].as_u64().unwrap() as usize;
                    blocks.extend(
                        hashes.enumerate().map(|(at, hash)| (hash, event["token_ids"][at * size].clone())),
                    );
                }
                "BlockRemoved" => hashes.for_each(|hash| drop(blocks.remove(&hash))),
                kind => {
                    assert_eq!(kind, "AllBlocksCleared");
                    blocks.clear();
                }
            }
        }
        blocks
    }
}

fn batch(number: &[u8], payload: &[u8]) -> (i64, Value) {
    (i64::from_be_bytes(number.try_into().unwrap()), rmp_serde::from_slice(payload).unwrap())
}

fn complete(server: &Server, first: u32) -> u64 {
    let prompt: Vec<u32> = (first..first + 65).collect();
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": true});
    let (status, answer) = server.post(COMPLETIONS, &body);
    assert_eq!(status, 200, "{answer}");
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default()
}

#[test]
fn subscribers_follow_each_engine_and_its_restart() {
    let runtime = Runtime::new().unwrap();
    let route = ["--dp", "2", "--route", "round-robin"];
    for (name, fleet) in [("kv-events-one", &[][..]), ("kv-events-two", &route)] {
        let options = [
            "--threads",
            "1",
            "--kv-events",
            "tcp://127.0.0.1:0",
            "--kv-events-replay",
            "tcp://127.0.0.1:0",
            "--kv-events-topic",
            "kv@pod@tiny",
        ];
        let (server, mut log) = Server::start_logged(name, &[&options, fleet].concat());
        let engines = if fleet.is_empty() { 1 } else { 2 };
        let mut streams = Vec::new();
        let mut line = String::new();
        while streams.len() < engines {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0);
            if let Some((events, replay)) = line.split_once(", replay at ") {
                let events = events.split_once(" at ").unwrap().1;
                streams.push(runtime.block_on(Stream::open(events, replay.trim())));
            }
        }
        thread::spawn(move || log.lines().for_each(drop));
        thread::sleep(Duration::from_millis(500));
        (0..engines).for_each(|_| assert_eq!(complete(&server, 100), 0));
        for (rank, stream) in streams.iter_mut().enumerate() {
            runtime.block_on(stream.receive());
            let (cached, (_, batch)) = (stream.cached(), &stream.batches[0]);
            assert!(cached.values().any(|token| *token == 100), "{cached:?}");
            assert_eq!(batch[2], rank);
            let stored = &batch[1][0];
            assert_eq!((&stored["medium"], &stored["group_idx"]), (&json!("GPU"), &json!(0)));
            assert_eq!((&stored["parent_block_hash"], &stored["lora_id"]), (&Value::Null, &Value::Null));
        }
        // What the events tell is what hits.
        let (_, batch) = &streams[0].batches[0];
        let size = batch[1][0]["block_size"].as_u64().unwrap();
        (0..engines).for_each(|_| assert_eq!(complete(&server, 100), 64 / size * size));
        if engines == 2 {
            let (_, answer) = server.send("GET", "/v1/admin/replicas", "", "");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            let process = answer["data"][1]["process"].as_u64().unwrap();
            Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
            let begin = Instant::now();
            loop {
                runtime.block_on(streams[1].receive());
                if streams[1].cached().is_empty() {
                    break;
                }
                assert!(begin.elapsed() < Duration::from_secs(60));
            }
            let cleared = &streams[1].batches.last().unwrap().1[1];
            assert_eq!(*cleared, json!([{"type": "AllBlocksCleared"}]));
        }
        for stream in &mut streams {
            runtime.block_on(stream.receive());
            assert!(!stream.batches.is_empty());
            assert!((0..).zip(&stream.batches).all(|(expected, (number, _))| expected == *number));
            assert_eq!(runtime.block_on(stream.replayed()), stream.batches);
        }
    }
}

/// The first of `count` consecutive free ports.
fn free_ports(count: u16) -> u16 {
    loop {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let first = listener.local_addr().unwrap().port();
        let is_free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if first < u16::MAX - count && (first + 1..first + count).all(is_free) {
            return first;
        }
    }
}

#[test]
fn routers_find_the_streams_and_loads_of_each_engine() {
    let runtime = Runtime::new().unwrap();
    let port = free_ports(6);
    let at = |port: u16| format!("tcp://127.0.0.1:{port}");
    let (events, replay, loads) = (at(port), at(port + 2), at(port + 4));
    let options = ["--threads", "1", "--dp", "2", "--kv-events", &events, "--kv-events-replay", &replay];
    let options = [&options[..], &["--load-events", &loads]].concat();
    let (server, log) = Server::start_logged("load-events", &options);
    thread::spawn(move || log.lines().for_each(drop));
    complete(&server, 100);
    let get = |path: &str| -> Value { serde_json::from_str(&server.send("GET", path, "", "").1).unwrap() };
    let begin = Instant::now();
    let info = loop {
        let info = get("/server_info");
        if info["internal_states"].as_array().is_some_and(|loads| loads.len() == 2) {
            break info;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{info}");
        thread::sleep(Duration::from_millis(50));
    };
    let streams = &info["kv_events"];
    assert_eq!((&info["dp_size"], &info["load_balance_method"]), (&json!(2), &json!("prefix")));
    assert_eq!(
        *streams,
        json!({
            "publisher": "zmq", "endpoint_host": "127.0.0.1", "endpoint_port_base": port, "topic": "",
            "block_size": info["page_size"], "dp_size": 2, "replay_endpoint_host": "127.0.0.1",
            "replay_endpoint_port_base": port + 2, "replay_buffer_steps": 10_000,
            "load_endpoint_port_base": port + 4, "load_topic": "load",
        })
    );
    let loads = get("/v1/loads");
    let ranks: Vec<&Value> = loads["loads"].as_array().unwrap().iter().map(|load| &load["dp_rank"]).collect();
    assert_eq!(ranks, [&json!(0), &json!(1)], "{loads}");
    runtime.block_on(async {
        for rank in 0..2 {
            let mut subscription = SubSocket::new();
            subscription.connect(&at(port + 4 + rank)).await.unwrap();
            subscription.subscribe("load").await.unwrap();
            let frames =
                timeout(Duration::from_secs(30), subscription.recv()).await.unwrap().unwrap().into_vec();
            let stat: Value = rmp_serde::from_slice(&frames[2]).unwrap();
            let capacity = &info["max_total_num_tokens"];
            assert_eq!(stat, json!(["LoadStat", 0, 0, 0, capacity, rank]));
        }
    });
}

#[test]
fn what_cannot_publish_is_refused_by_name() {
    let folder = super::server::model("kv-events-refused");
    let refused = |options: &[&str], parts: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(["serve", folder.to_str().unwrap(), "--port", "0"])
            .args(options)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && parts.iter().all(|part| text.contains(part)), "{text}");
    };
    let on = ["--kv-events", "tcp://127.0.0.1:0"];
    for fleet in [&[][..], &["--dp", "1"]] {
        refused(&[&on, &["--cache", "cells"], fleet].concat(), &["--kv-events: ", "cells"]);
        refused(&[&on, &["--prefix-cache", "off"], fleet].concat(), &["--kv-events: ", "prefix"]);
    }
    refused(&["--kv-events-replay", "tcp://127.0.0.1:0"], &["--kv-events-replay needs --kv-events"]);
    refused(&["--kv-events-topic", "kv"], &["--kv-events-topic needs --kv-events"]);
    refused(&["--kv-events", "ipc://x"], &["tcp://HOST:PORT"]);
    refused(&["--kv-events", "tcp://127.0.0.1:65535", "--dp", "2"], &["--kv-events: ", "65535"]);
    let overlapping = ["--kv-events", "tcp://127.0.0.1:5557", "--kv-events-replay", "tcp://127.0.0.1:5558"];
    refused(&[&overlapping[..], &["--dp", "2"]].concat(), &["overlap"]);
    let overlapping = ["--kv-events", "tcp://127.0.0.1:5557", "--load-events", "tcp://127.0.0.1:5557"];
    refused(&overlapping, &["--load-events: ", "--kv-events overlap"]);
    refused(&["--load-events", "7557"], &["tcp://HOST:PORT"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    refused(&["--kv-events", &address], &["--kv-events: cannot listen on"]);
    refused(&["--load-events", &address], &["--load-events: cannot listen on"]);
    std::fs::remove_dir_all(folder).unwrap();
}
