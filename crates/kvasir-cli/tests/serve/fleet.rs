//! `kvasir serve --dp`: worker processes give the answers of a single process, also when workers
//! are killed, hung, suspended, drained or restarted, or have roles. They share their packed
//! weights. No process, request, KV slot or file is leaked.

use super::server::{CHAT, COMPLETIONS, JSON, Server, model};
use kvasir_testkit::Random;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A server with its replicas.
pub(super) struct Fleet {
    pub(super) server: Server,
}

impl Fleet {
    pub(super) fn start(name: &str, replicas: u32, more: &[&str]) -> Self {
        let replicas = replicas.to_string();
        let options = [&["--dp", &replicas, "--threads", "1", "--max-model-len", "512"], more].concat();
        Self { server: Server::start(name, &options) }
    }

    pub(super) fn replicas(&self) -> Vec<Value> {
        let (status, answer) = self.server.send("GET", "/v1/admin/replicas", "", "");
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["data"].as_array().unwrap().clone()
    }

    /// Ids of the worker processes that take requests.
    pub(super) fn processes(&self) -> Vec<u64> {
        let replicas = self.replicas();
        let ready = replicas.iter().filter(|replica| replica["phase"] == "ready");
        ready.filter_map(|replica| replica["process"].as_u64()).collect()
    }

    pub(super) fn admin_action(&self, replica: u32, what: &str) {
        let path = format!("/v1/admin/replicas/{replica}/{what}");
        let (status, answer) = self.server.send("POST", &path, JSON, "");
        assert_eq!(status, 200, "{answer}");
    }

    pub(super) fn wait_until(&self, what: &str, holds: impl Fn(&[Value]) -> bool) {
        let begin = Instant::now();
        while !holds(&self.replicas()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.replicas());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn wait_until_ready(&self) {
        self.wait_until("ready", |replicas| replicas.iter().all(|replica| replica["phase"] == "ready"));
    }

    /// Number of tokens that all workers have generated.
    fn generated(&self) -> u64 {
        let page = self.server.send("GET", "/metrics", "", "").1;
        let line = page.lines().find(|line| line.starts_with("kvasir:generation_tokens_total{")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until all replicas are ready and have generated more tokens than there are streams, or until
    /// `done`. A request fails when it has lost five workers in a row without a token, which also happens
    /// if a busy machine runs kills in faster succession than steps.
    pub(super) fn wait_for_tokens(&self, done: &AtomicBool) {
        self.wait_until_ready();
        let (begin, before) = (Instant::now(), self.generated());
        while !done.load(Ordering::Relaxed) && self.generated() < before + 2 * STREAMS as u64 {
            assert!(begin.elapsed() < Duration::from_secs(60), "no tokens are generated");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Answers all requests, and kills random ones of `targets` at random moments meanwhile. All
    /// answers must equal the expected ones. Returns the number of kills.
    fn answer_under_kills(
        &self,
        requests: &[(&'static str, Value)],
        expected: &[Vec<(String, String, u64)>],
        seed: u64,
        targets: impl Fn() -> Vec<u64> + Send + Sync,
    ) -> u32 {
        let mut kills = 0;
        let got = answer_all(&self.server, requests, |done| {
            let mut random = Random::new(seed);
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(random.between(50, 500).into()));
                self.wait_for_tokens(done);
                let targets = targets();
                if !targets.is_empty() {
                    signal(random.pick(&targets), "-KILL");
                    kills += 1;
                }
            }
        });
        for ((request, expected), got) in requests.iter().zip(expected).zip(&got) {
            assert_eq!(got, expected, "round {seed}: {request:?}");
        }
        kills
    }

    /// Repeats [`answer_under_kills`](Self::answer_under_kills) until enough targets are killed. All
    /// replicas are then ready and idle again.
    pub(super) fn survive_kills(
        &self,
        requests: &[(&'static str, Value)],
        expected: &[Vec<(String, String, u64)>],
        targets: impl Fn() -> Vec<u64> + Send + Sync + Copy,
    ) {
        let (mut kills, mut seed) = (0, 0);
        while kills < kill_count() {
            kills += self.answer_under_kills(requests, expected, seed, targets);
            seed += 1;
        }
        self.wait_until_ready();
        self.wait_until_idle();
    }

    /// Answers to twelve requests; the server is idle afterwards.
    pub(super) fn answers(&self) -> Vec<Vec<(String, String, u64)>> {
        let requests: Vec<_> = (0..12).map(|number| request(number, 40)).collect();
        let answers = answer_all(&self.server, &requests, |_| {});
        self.wait_until_idle();
        answers
    }

    /// Waits until no request is open and no KV slot is held.
    pub(super) fn wait_until_idle(&self) {
        self.wait_until("free", |replicas| replicas.iter().all(|replica| replica["requests"] == 0));
        let begin = Instant::now();
        loop {
            let page = self.server.send("GET", "/metrics", "", "").1;
            let held = page.lines().find(|line| line.starts_with("kvasir:kv_cache_slots_held")).unwrap();
            if held.ends_with(" 0") {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{held}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

pub(super) fn signal(process: u64, signal: &str) {
    Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
}

pub(super) fn is_running(process: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

pub(super) fn wait_for_exit(processes: &[u64]) {
    let begin = Instant::now();
    while processes.iter().any(|process| is_running(*process)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{processes:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Number of answers that are streamed at the same time.
const STREAMS: usize = 32;

/// Number of workers that a test kills at least; `tools/nightly kills` sets 100.
pub(super) fn kill_count() -> u32 {
    std::env::var("KVASIR_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// Request number `number`. Even numbers complete a text, odd ones answer a chat. They are greedy,
/// sampled, with penalties, with Mirostat, with two choices, or with a JSON schema.
pub(super) fn request(number: u64, length: u32) -> (&'static str, Value) {
    let mut random = Random::new(number);
    let words: Vec<String> = (0..random.between(1, 40)).map(|_| format!("w{}", random.below(30))).collect();
    let text = words.join(" ");
    let mut body = json!({"model": "tiny", "seed": number, "max_tokens": length, "stream": true,
        "ignore_eos": true, "stream_options": {"include_usage": true}});
    let mut set = |name: &str, value: Value| drop(body.as_object_mut().unwrap().insert(name.into(), value));
    match number % 6 {
        0 => set("temperature", json!(0)),
        1 => set("temperature", json!(0.9)),
        2 => {
            set("temperature", json!(1.1));
            set("frequency_penalty", json!(0.7));
            set("repetition_penalty", json!(1.2));
        }
        3 => {
            set("temperature", json!(1.0));
            set("mirostat", json!(2));
        }
        4 => {
            set("temperature", json!(0.8));
            set("n", json!(2));
        }
        _ => {
            set("ignore_eos", json!(false));
            set("temperature", json!(0.7));
            set(
                "response_format",
                json!({"type": "json_schema", "json_schema": {"name": "list", "schema": {
                "type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 20}},
                "required": ["a"], "additionalProperties": false}}}),
            );
        }
    }
    if number.is_multiple_of(2) {
        set("prompt", json!(text));
        (COMPLETIONS, body)
    } else {
        set("messages", json!([{"role": "user", "content": text}]));
        (CHAT, body)
    }
}

/// The texts of a streamed answer by choice, with its finish reasons and token counts.
pub(super) fn answer(server: &Server, (path, body): &(&str, Value)) -> Vec<(String, String, u64)> {
    let n = body["n"].as_u64().unwrap_or(1) as usize;
    let mut answers = vec![(String::new(), String::new(), 0); n];
    for event in server.events(path, body) {
        assert!(event.get("error").is_none(), "{event}");
        for choice in event["choices"].as_array().unwrap() {
            let (text, finish, _) = &mut answers[choice["index"].as_u64().unwrap() as usize];
            let delta = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
            delta.iter().filter_map(|part| part.as_str()).for_each(|part| text.push_str(part));
            choice["finish_reason"].as_str().into_iter().for_each(|reason| finish.push_str(reason));
        }
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            answers[0].2 = tokens;
        }
    }
    answers
}

/// Answers all requests, some at a time, while `while_serving` runs.
pub(super) fn answer_all(
    server: &Server,
    requests: &[(&'static str, Value)],
    while_serving: impl FnOnce(&AtomicBool) + Send,
) -> Vec<Vec<(String, String, u64)>> {
    let done = AtomicBool::new(false);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let answers: Vec<_> = requests.iter().map(|_| std::sync::Mutex::new(Vec::new())).collect();
    thread::scope(|scope| {
        let others = scope.spawn(|| while_serving(&done));
        let workers: Vec<_> = (0..STREAMS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(request) = requests.get(at) else { break };
                        *answers[at].lock().unwrap() = answer(server, request);
                    }
                })
            })
            .collect();
        let joined: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        others.join().unwrap();
        joined.into_iter().for_each(|result| result.unwrap());
    });
    answers.into_iter().map(|answer| answer.into_inner().unwrap()).collect()
}

#[test]
fn killing_workers_changes_no_answer() {
    let requests: Vec<_> = (0..96).map(|number| request(number, 120)).collect();
    let alone = Server::start("fleet-alone", &["--threads", "1", "--max-model-len", "512"]);
    let expected = answer_all(&alone, &requests, |_| {});
    drop(alone);
    let fleet = Fleet::start("fleet-killed", 2, &[]);
    let undisturbed = answer_all(&fleet.server, &requests, |_| {});
    for ((request, expected), got) in requests.iter().zip(&expected).zip(&undisturbed) {
        assert_eq!(got, expected, "{request:?}");
    }
    fleet.wait_until_idle();
    fleet.survive_kills(&requests, &expected, || fleet.processes());
}

#[test]
fn draining_and_restarting_replicas_changes_no_answer() {
    let fleet = Fleet::start("fleet-drained", 2, &["--spec", "suffix"]);
    let requests: Vec<_> = (0..120).map(|number| request(number, 150)).collect();
    let expected = answer_all(&fleet.server, &requests, |_| {});
    let got = answer_all(&fleet.server, &requests, |_| {
        for replica in [0, 1] {
            thread::sleep(Duration::from_millis(200));
            fleet.admin_action(replica, "drain");
            fleet.wait_until("drained", |replicas| {
                let replica = &replicas[replica as usize];
                (&replica["phase"], &replica["requests"]) == (&json!("drained"), &json!(0))
            });
            let (_, health) = fleet.server.send("GET", "/health", "", "");
            assert_eq!(health, r#"{"status":"degraded"}"#);
            fleet.admin_action(replica, "restart");
            fleet.wait_until("restarted", |replicas| {
                let replica = &replicas[replica as usize];
                (&replica["phase"], &replica["restarts"]) == (&json!("ready"), &json!(1))
            });
        }
    });
    assert_eq!(got, expected);
    assert_eq!(fleet.server.send("GET", "/health", "", "").1, r#"{"status":"ok"}"#);
    let missing = fleet.server.send("POST", "/v1/admin/replicas/2/drain", JSON, "");
    assert_eq!(missing.0, 404, "{}", missing.1);
    assert!(missing.1.contains("ids are 0 to 1"), "{}", missing.1);
}

/// The packed file that a process maps: its inode, resident size and proportional size in kB.
pub(super) fn shared_weights(process: u64) -> (u64, u64, u64) {
    let text = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap();
    let (mut inodes, mut sizes, mut is_shared) = (Vec::new(), [0, 0], false);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0].contains('-') {
            is_shared = line.contains("memfd:kvasir-weights");
            inodes.extend(is_shared.then(|| words[4].parse::<u64>().unwrap()));
        } else if is_shared && let Some(at) = ["Rss:", "Pss:"].iter().position(|name| *name == words[0]) {
            sizes[at] += words[1].parse::<u64>().unwrap();
        }
    }
    inodes.dedup();
    assert_eq!(inodes.len(), 1, "{text}");
    (inodes[0], sizes[0], sizes[1])
}

/// The tiny model with its tokenizer as a GGUF file of this type.
pub(super) fn converted(name: &str, dtype: &str) -> PathBuf {
    let source = model(&format!("{name}-source"));
    let folder = source.with_extension("gguf");
    fs::create_dir_all(&folder).unwrap();
    let mut convert = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    convert.arg("convert").arg(&source).arg(folder.join("model.gguf")).args(["--dtype", dtype]);
    assert!(convert.output().unwrap().status.success());
    fs::remove_dir_all(&source).unwrap();
    folder
}

#[test]
fn replicas_share_their_packed_weights() {
    let requests: Vec<_> = (0..24).map(|number| request(number, 60)).collect();
    // Packed at the start in f32, and while steps run.
    for dtype in ["f32", "q8_0", "bf16"] {
        let start = |options: &[&str]| {
            let options = [&["--threads", "1", "--max-model-len", "512"], options].concat();
            Server::of_model(converted(&format!("fleet-{dtype}{}", options.len()), dtype), &options, &[])
        };
        let alone = start(&[]);
        let expected = answer_all(&alone, &requests, |_| {});
        let fleet = Fleet { server: start(&["--dp", "2"]) };
        assert_eq!(answer_all(&fleet.server, &requests, |_| {}), expected, "{dtype}");
        let processes = fleet.processes();
        let [first, second] = [0, 1].map(|n| shared_weights(processes[n]));
        assert_eq!(first.0, second.0, "{dtype}: one file");
        let (resident, proportional) = (first.1 + second.1, first.2 + second.2);
        assert!(resident > 0 && proportional * 4 < resident * 3, "{dtype}: {first:?} {second:?}");
        // A worker may be killed while it packs: the next one packs the remaining panels.
        let mut random = Random::new(dtype.len() as u64);
        for restarts in 1..8 {
            let process = fleet.replicas()[0]["process"].as_u64().unwrap();
            signal(process, "-KILL");
            fleet.wait_until("restarted", |replicas| {
                replicas[0]["restarts"] == restarts && replicas[0]["process"].is_u64()
            });
            thread::sleep(Duration::from_millis(random.below(60)));
        }
        fleet.wait_until_ready();
        assert_eq!(answer_all(&fleet.server, &requests, |_| {}), expected, "{dtype}, restarted");
        assert_eq!(shared_weights(fleet.processes()[0]).0, first.0, "{dtype}: the file outlives workers");
    }
}

/// The value of a metric, summed over its labels that contain `label`.
pub(super) fn metric(server: &Server, name: &str, label: &str) -> u64 {
    let page = server.send("GET", "/metrics", "", "").1;
    let samples = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// A request whose prompt has several blocks and shares no prefix with the others.
fn long_request(number: u64, length: u32) -> (&'static str, Value) {
    let (path, mut body) = request(number, length);
    let text: Vec<String> = (0..60).map(|i| format!("w{}", (number * 7 + i * i) % 40)).collect();
    let text = format!("request {number}: {}", text.join(" "));
    if path == CHAT {
        body["messages"] = json!([{"role": "user", "content": text}]);
    } else {
        body["prompt"] = json!(text);
    }
    (path, body)
}

#[test]
fn disaggregated_prefill_changes_no_answer() {
    let requests: Vec<_> = (0..48).map(|number| long_request(number, 60)).collect();
    let options = ["--threads", "1", "--max-model-len", "512", "--spec", "suffix"];
    let alone = Server::start("roles-alone", &options);
    let expected = answer_all(&alone, &requests, |_| {});
    drop(alone);
    let fleet =
        Fleet::start("roles", 2, &["--spec", "suffix", "--role", "prefill,decode", "--block-size", "16"]);
    let received = || metric(&fleet.server, "kvasir:replica_kv_received_blocks_total", "decode");
    let hits = || metric(&fleet.server, "kvasir:prefix_cache_hits_total", "");
    for (path, body) in requests.iter().take(6) {
        let before = (received(), hits());
        let mut body = body.clone();
        body["stream"] = json!(false);
        body.as_object_mut().unwrap().remove("stream_options");
        let (status, answer) = fleet.server.post(path, &body);
        assert_eq!(status, 200, "{answer}");
        fleet.wait_until_idle();
        // The decode engine receives and hits all whole blocks of the prompt, except those of the
        // template, which it has cached.
        let blocks = answer["usage"]["prompt_tokens"].as_u64().unwrap() / 16;
        let received = received() - before.0;
        assert!(blocks > 4 && (blocks - 2..=blocks).contains(&received), "{received} blocks: {answer}");
        // Workers report their counters after a delay.
        let begin = Instant::now();
        while hits() - before.1 < 16 * blocks {
            assert!(begin.elapsed() < Duration::from_secs(30), "{} hits: {answer}", hits() - before.1);
            thread::sleep(Duration::from_millis(20));
        }
    }
    let got = answer_all(&fleet.server, &requests, |_| {});
    for ((request, expected), got) in requests.iter().zip(&expected).zip(&got) {
        assert_eq!(got, expected, "{request:?}");
    }
    let replicas = fleet.replicas();
    assert_eq!([&replicas[0]["role"], &replicas[1]["role"]], ["prefill", "decode"]);
    assert_eq!(replicas[1]["kv_transfers"]["sent_blocks"], 0, "{replicas:?}");
    // The front sends no block that it believes cached, so it must forget the blocks of a killed
    // engine.
    fleet.answer_under_kills(&requests, &expected, 5, || fleet.processes());
    fleet.wait_until_ready();
    fleet.wait_until_idle();
}

#[test]
fn invalid_roles_are_errors() {
    let folder = model("roles-refused");
    let refused = |options: &[&str], parts: &[&str]| {
        let serve = ["serve", folder.to_str().unwrap(), "--port", "0"];
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir")).args(serve).args(options).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && parts.iter().all(|part| text.contains(part)), "{text}");
    };
    refused(&["--role", "prefill,decode"], &["--role needs --dp"]);
    refused(&["--tp", "2", "--role", "both"], &["--role cannot be combined with --tp"]);
    refused(
        &["--dp", "2", "--tp", "2", "--role", "prefill,decode"],
        &["--role cannot be combined with --tp"],
    );
    refused(&["--dp", "3", "--role", "prefill,decode"], &["--role has 2 entries", "--dp 3"]);
    refused(&["--dp", "2", "--role", "prefill,prefill"], &["no engine for decode"]);
    refused(&["--dp", "2", "--role", "decode,decode"], &["no engine for prefill"]);
    let roles = ["--dp", "2", "--role", "prefill,decode", "--route", "least-requests"];
    refused(&[&roles[..], &["--cache", "cells"]].concat(), &["--role prefill", "cells", "prefix"]);
    refused(&[&roles[..], &["--prefix-cache", "off"]].concat(), &["--role prefill", "prefix caching"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_suspended_worker_only_delays_its_answers() {
    let fleet = Fleet::start("fleet-stopped", 2, &[]);
    let requests: Vec<_> = (0..64).map(|number| request(number, 150)).collect();
    let expected = answer_all(&fleet.server, &requests, |_| {});
    let got = answer_all(&fleet.server, &requests, |_| {
        thread::sleep(Duration::from_millis(100));
        let process = fleet.processes()[0];
        signal(process, "-STOP");
        thread::sleep(Duration::from_secs(5));
        signal(process, "-CONT");
    });
    assert_eq!(got, expected);
}

/// The front kills a worker that has requests and completes no step; the other worker continues
/// them.
#[test]
fn a_hung_worker_is_killed_and_its_answers_continue() {
    // A step may take seconds on a busy machine.
    let fleet = Fleet::start("fleet-hung", 2, &["--step-timeout", "8"]);
    let requests: Vec<_> = (0..64).map(|number| request(number, 150)).collect();
    let expected = answer_all(&fleet.server, &requests, |_| {});
    let hung = AtomicUsize::new(0);
    let got = answer_all(&fleet.server, &requests, |_| {
        let is_busy = |replica: &Value| replica["phase"] == "ready" && replica["requests"] != 0;
        let begin = Instant::now();
        // Uses the snapshot that is busy: the next one may be idle.
        let busy = loop {
            if let Some(busy) = fleet.replicas().into_iter().find(is_busy) {
                break busy;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no replica is busy");
            thread::sleep(Duration::from_millis(5));
        };
        hung.store(busy["replica"].as_u64().unwrap() as usize, Ordering::Relaxed);
        signal(busy["process"].as_u64().unwrap(), "-STOP");
    });
    assert_eq!(got, expected);
    fleet.wait_until_ready();
    let hung = hung.into_inner();
    let hangs = fleet.replicas()[hung]["hangs"].as_u64().unwrap();
    assert!(hangs > 0, "{:?}", fleet.replicas());
    let page = fleet.server.send("GET", "/metrics", "", "").1;
    let counted = format!("kvasir:replica_hangs_total{{model_name=\"tiny\",replica=\"{hung}\"}} {hangs}");
    assert!(page.contains(&counted), "{page}");
    fleet.wait_until_idle();
}

/// The events of a replica's step stream: `None` for `begin`, else a step.
fn steps(server: &Server, replica: &str) -> (Value, impl Iterator<Item = Option<Value>>) {
    let mut stream = server.connect();
    write!(stream, "GET /v1/engine/steps{replica} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let begin = lines.by_ref().find_map(|line| Some(line.strip_prefix("data: ")?.to_owned())).unwrap();
    let mut is_begin = false;
    let events = lines.filter_map(move |line| {
        if line == "event: begin" {
            is_begin = true;
        }
        let data = line.strip_prefix("data: ")?;
        let event = (!std::mem::take(&mut is_begin)).then(|| serde_json::from_str(data).unwrap());
        Some(event)
    });
    (serde_json::from_str(&begin).unwrap(), events)
}

/// Reads a stream up to the end of a request. Returns the number of generated tokens, and whether
/// there was a `begin`.
fn read_until_end(events: &mut impl Iterator<Item = Option<Value>>) -> (u64, bool) {
    let (mut tokens, mut has_begun) = (0, false);
    for event in events {
        let Some(step) = event else {
            has_begun = true;
            continue;
        };
        for runs in [&step["spoke"], &step["outputs"]] {
            let runs = runs.as_array().map_or(&[][..], Vec::as_slice);
            tokens += runs.iter().filter_map(|run| run[1].as_u64()).sum::<u64>();
        }
        if step.get("ended").is_some() {
            break;
        }
    }
    (tokens, has_begun)
}

#[test]
fn steps_of_each_replica_are_streamed_across_restarts() {
    let fleet = Fleet::start("fleet-steps", 2, &["--route", "round-robin"]);
    let complete = || {
        let body = json!({"model": "tiny", "prompt": "w1 w2", "max_tokens": 20, "ignore_eos": true});
        assert_eq!(fleet.server.post(COMPLETIONS, &body).0, 200);
    };
    let (begin, mut first) = steps(&fleet.server, "");
    assert_eq!((&begin["replica"], &begin["replicas"]), (&json!(0), &json!(2)));
    assert!(begin["setup"]["capacity"].as_u64().unwrap() > 0, "{begin}");
    let (begin, mut second) = steps(&fleet.server, "?replica=1");
    assert_eq!(begin["replica"], 1);
    // Round robin: one request per replica.
    complete();
    complete();
    assert_eq!(read_until_end(&mut first).0, 20);
    assert_eq!(read_until_end(&mut second).0, 20);
    signal(fleet.processes()[1], "-KILL");
    fleet.wait_until("restarted", |replicas| replicas[1]["restarts"] == 1 && replicas[1]["phase"] == "ready");
    complete();
    complete();
    assert_eq!(
        read_until_end(&mut second),
        (20, true),
        "the stream continues with the steps of the new process"
    );
    assert_eq!(read_until_end(&mut first), (20, false));
    for wrong in ["?replica=2", "?replica=x"] {
        let (status, answer) = fleet.server.send("GET", &format!("/v1/engine/steps{wrong}"), "", "");
        assert!(status == 400 && answer.contains("replica"), "{answer}");
    }
    let has_figures = |replica: &Value| replica["kv_slots"] != 0 && replica["steps"] != 0;
    fleet.wait_until("figures", |replicas| replicas.iter().all(has_figures));
}

/// Prefix routing needs KV events. Without them the default policy falls back to session and load.
#[test]
fn routing_without_kv_events_is_reported() {
    let options = ["--dp", "1", "--threads", "1", "--max-model-len", "256", "--cache", "cells"];
    let (server, log) = Server::start_logged("fleet-cells", &options);
    let mut lines = log.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("--route prefix routes by session and load")));
    let (_, answer) = server.send("GET", "/v1/admin/replicas", "", "");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["routing"], json!({"route": "prefix", "kv_events": false}));
}

#[test]
fn workers_end_with_the_server_and_leave_no_files() {
    let runtime = std::env::temp_dir().join(format!("kvasir-fleet-test-{}", std::process::id()));
    fs::create_dir_all(&runtime).unwrap();
    let start = |name: &str| {
        let environment = [("XDG_RUNTIME_DIR", runtime.to_str().unwrap())];
        Server::start_with(name, &["--dp", "2", "--threads", "1"], &environment)
    };
    let directories = |runtime: &Path| fs::read_dir(runtime).unwrap().count();
    let mut fleet = Fleet { server: start("fleet-front") };
    let processes = fleet.processes();
    assert_eq!((processes.len(), directories(&runtime)), (2, 1));
    fleet.server.process.kill().unwrap();
    fleet.server.process.wait().unwrap();
    let begin = Instant::now();
    while processes.iter().any(|process| is_running(*process)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "{processes:?}");
        thread::sleep(Duration::from_millis(10));
    }
    // The next start removes the sockets of the killed server, and at its end its own.
    let mut fleet = Fleet { server: start("fleet-again") };
    assert_eq!(directories(&runtime), 1);
    let processes = fleet.processes();
    assert_eq!(fleet.server.post(CHAT, &super::server::chat(json!({}))).0, 200);
    fleet.server.terminate();
    assert!(fleet.server.process.wait().unwrap().success());
    assert!(!processes.iter().any(|process| is_running(*process)));
    assert_eq!(directories(&runtime), 0);
    fs::remove_dir_all(&runtime).unwrap();
}
