//! `kvasir serve --dp N --ep on`: log-probabilities of expert-parallel engines are bit-identical to
//! those of one process, and answers equal those of one process, also when workers are killed or
//! restarted. Engines without work run dummy steps. While all engines are idle, they use no
//! processor time.

use super::fleet::{Fleet, answer_all, metric, request, signal};
use super::server::{COMPLETIONS, JSON, Server, model_of};
use kvasir_testkit::Random;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::Command,
    thread,
    time::{Duration, Instant},
};

const ONE_PROCESS: [&str; 4] = ["--threads", "1", "--max-model-len", "512"];
const TWO_ENGINES: [&str; 8] = ["--dp", "2", "--ep", "on", "--threads", "1", "--max-model-len", "512"];

fn serve(name: &str, checkpoint: &str, base: &[&str], more: &[&str]) -> Server {
    Server::of_model(model_of(name, checkpoint), &[base, more].concat(), &[])
}

/// JSON text of the answers to 24 concurrent requests, with log-probabilities.
fn log_probabilities(server: &Server) -> Vec<String> {
    let complete = |number: u64| {
        let mut random = Random::new(number);
        let words = |random: &mut Random| {
            (0..random.between(1, 60)).map(|_| format!("w{} ", random.below(40))).collect()
        };
        let prompt: String = words(&mut random);
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 24, "logprobs": 5, "seed": number,
            "echo": number.is_multiple_of(3), "ignore_eos": true, "temperature": (number % 2) as f64});
        let (status, answer) = server.send("POST", COMPLETIONS, JSON, &body.to_string());
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["choices"].to_string()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..24).map(|number| scope.spawn(move || complete(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn log_probabilities_are_bit_identical_to_those_of_one_process() {
    for checkpoint in ["mixtral", "qwen3_moe", "deepseek_v3", "glm4_moe", "gpt_oss_mxfp4"] {
        let expected = log_probabilities(&serve("experts-one", checkpoint, &ONE_PROCESS, &[]));
        for (dp, more) in [("2", &["--ep", "on"][..]), ("3", &["--ep", "on"]), ("2", &[])] {
            let server = serve("experts-bits", checkpoint, &ONE_PROCESS, &[&["--dp", dp], more].concat());
            assert_eq!(log_probabilities(&server), expected, "{checkpoint} --dp {dp} {more:?}");
        }
    }
    let plain = |more: &[&str]| {
        let options = [&["--backend", "plain"], more].concat();
        log_probabilities(&serve("experts-plain", "mixtral", &ONE_PROCESS[2..], &options))
    };
    assert_eq!(plain(&["--dp", "2", "--ep", "on"]), plain(&[]));
}

#[test]
fn answers_are_equal_under_every_configuration() {
    let requests: Vec<_> = (0..24).map(|number| request(number, 40)).collect();
    let answers = |checkpoint: &str, base: &[&str], options: &[&str]| {
        let fleet = Fleet { server: serve("experts-matrix", checkpoint, base, options) };
        let answers = answer_all(&fleet.server, &requests, |_| {});
        if base.contains(&"--dp") {
            fleet.wait_until_idle();
        }
        answers
    };
    let expected = answers("qwen3_moe", &ONE_PROCESS, &[]);
    let configurations: [&[&str]; 10] = [
        &["--spec", "suffix"],
        &["--cache", "cells"],
        &["--cache", "paged", "--block-size", "8", "--route", "round-robin"],
        &["--cache", "contiguous"],
        &["--cache", "tree", "--spec", "suffix"],
        &["--policy", "prefill-first", "--spec", "ngram"],
        &["--policy", "rectangular"],
        &["--overlap", "on"],
        &["--prefill-coalescing", "on"],
        &["--max-num-batched-tokens", "32", "--max-num-seqs", "3", "--prefill-coalescing", "on"],
    ];
    for options in configurations {
        assert_eq!(answers("qwen3_moe", &TWO_ENGINES, options), expected, "{options:?}");
    }
    // The draft model has experts, and each engine has all of them.
    let expected = answers("glm4_moe", &ONE_PROCESS, &[]);
    assert_eq!(answers("glm4_moe", &TWO_ENGINES, &["--spec", "mtp:1"]), expected);
}

#[test]
fn killing_workers_changes_no_answer() {
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    let expected = answer_all(&serve("experts-alone", "mixtral", &ONE_PROCESS, &[]), &requests, |_| {});
    let fleet = Fleet { server: serve("experts-killed", "mixtral", &TWO_ENGINES, &[]) };
    for process in fleet.processes() {
        let command = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap();
        assert!(command.split('\0').any(|argument| argument == "--experts-memory"), "{command}");
    }
    fleet.survive_kills(&requests, &expected, || fleet.processes());
}

#[test]
fn drained_and_restarted_engines_change_no_answer() {
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    let fleet = Fleet { server: serve("experts-drained", "deepseek_v3", &TWO_ENGINES, &[]) };
    let expected = answer_all(&fleet.server, &requests, |_| {});
    let got = answer_all(&fleet.server, &requests, |_| {
        thread::sleep(Duration::from_millis(200));
        fleet.admin_action(0, "drain");
        fleet.wait_until("drained", |replicas| {
            (&replicas[0]["phase"], &replicas[0]["requests"]) == (&json!("drained"), &json!(0))
        });
        thread::sleep(Duration::from_millis(200));
        fleet.admin_action(0, "restart");
        let is_restarted = |replica: &Value| replica["phase"] == "ready" && replica["restarts"] == 1;
        fleet.wait_until("restarted together", |replicas| replicas.iter().all(is_restarted));
    });
    assert_eq!(got, expected);
}

#[test]
fn a_suspended_worker_restarts_its_group() {
    let requests: Vec<_> = (0..8).map(|number| request(number, 60)).collect();
    let fleet =
        Fleet { server: serve("experts-suspended", "mixtral", &TWO_ENGINES, &["--step-timeout", "3"]) };
    let expected = answer_all(&fleet.server, &requests, |_| {});
    let got = answer_all(&fleet.server, &requests, |_| signal(fleet.processes()[1], "-STOP"));
    assert_eq!(got, expected);
    fleet.wait_until("restarted", |replicas| replicas.iter().all(|replica| replica["restarts"] == 1));
}

/// Reads live steps of an engine until `is_enough` holds.
fn read_steps(server: &Server, replica: usize, is_enough: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut stream = server.connect();
    write!(stream, "GET /v1/engine/steps?replica={replica} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let (mut steps, mut lines) = (Vec::new(), BufReader::new(stream).lines());
    while !is_enough(&steps) {
        let line = lines.next().unwrap().unwrap();
        let Some(event) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(event).unwrap();
        steps.extend(event.get("step").is_some().then_some(event));
    }
    steps
}

#[test]
fn traces_show_the_tokens_of_all_engines_and_dummy_steps() {
    let fleet =
        Fleet { server: serve("experts-traced", "mixtral", &TWO_ENGINES, &["--route", "round-robin"]) };
    let server = &fleet.server;
    let has_20_counts =
        |steps: &[Value]| steps.iter().filter(|step| step["num_tokens_across_dp"].is_array()).count() >= 20;
    let (working, idle) = thread::scope(|scope| {
        let watch = |replica| scope.spawn(move || read_steps(server, replica, has_20_counts));
        let watching = [watch(0), watch(1)];
        thread::sleep(Duration::from_millis(300));
        // One request: only the engine that runs it has tokens.
        let body = json!({"model": "tiny", "prompt": "a b c", "max_tokens": 60, "ignore_eos": true});
        assert_eq!(server.send("POST", COMPLETIONS, JSON, &body.to_string()).0, 200);
        let [first, second] = watching.map(|thread| thread.join().unwrap());
        if first.iter().any(|step| step["kind"] == "dummy") { (second, first) } else { (first, second) }
    });
    let counts = |steps: &[Value]| -> Vec<Vec<u64>> {
        let entries =
            steps.iter().flat_map(|step| step["num_tokens_across_dp"].as_array().into_iter().flatten());
        let tokens = |entry: &Value| entry[1].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        entries.map(tokens).collect()
    };
    for counts in counts(&working).into_iter().chain(counts(&idle)) {
        assert_eq!(counts.len(), 2);
        assert!(counts.contains(&0) && counts.iter().sum::<u64>() > 0, "{counts:?}");
    }
    assert!(idle.iter().filter(|step| step["kind"] == "dummy").count() >= 19, "{idle:?}");
    assert!(working.iter().all(|step| step["kind"] != "dummy"));
    fleet.wait_until_idle();
    // An engine without requests sends its counters a second after a dummy step.
    let dummy_steps = || metric(server, "kvasir:dummy_steps_total{", "");
    let begin = Instant::now();
    while dummy_steps() < 20 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{} dummy steps are counted", dummy_steps());
        thread::sleep(Duration::from_millis(50));
    }
}

/// What the threads of a process have used since its start.
struct ProcessorUse {
    /// Processor time in clock ticks.
    ticks: u64,
    /// Voluntary context switches.
    switches: u64,
}

fn processor_use(process: u64) -> ProcessorUse {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let mut switches = 0;
    for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten() {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        switches += line.map_or(0, |count| count.trim().parse::<u64>().unwrap());
    }
    // `utime` and `stime`.
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ProcessorUse { ticks, switches }
}

#[test]
fn idle_engines_use_no_processor_time() {
    let fleet = Fleet { server: serve("experts-idle", "mixtral", &TWO_ENGINES, &[]) };
    answer_all(&fleet.server, &[request(0, 40), request(1, 40)], |_| {});
    fleet.wait_until_idle();
    // The last counters are sent a second after the last request.
    thread::sleep(Duration::from_millis(1500));
    let processes = fleet.processes();
    assert_eq!(processes.len(), 2);
    let before: Vec<_> = processes.iter().map(|process| processor_use(*process)).collect();
    thread::sleep(Duration::from_secs(3));
    for (process, before) in processes.into_iter().zip(before) {
        let after = processor_use(process);
        let (ticks, switches) = (after.ticks - before.ticks, after.switches - before.switches);
        assert!(ticks <= 1 && switches < 20, "{ticks} ticks and {switches} switches in 3 s");
    }
}

#[test]
fn invalid_expert_parallel_options_are_errors() {
    let error_of = |checkpoint: &str, options: &[&str]| {
        let folder = model_of("experts-refused", checkpoint);
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.arg("serve").arg(&folder).args(["--port", "0"]).args(options);
        let output = command.output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("mixtral", &["--ep", "on"], &["--ep on", "--dp"]),
        ("mixtral", &["--ep", "on", "--dp", "1"], &["--ep on", "--dp"]),
        ("mixtral", &["--ep", "on", "--dp", "2", "--tp", "2"], &["--ep on", "--tp"]),
        ("mixtral", &["--ep", "on", "--dp", "2", "--role", "prefill,decode"], &["--ep on", "--role"]),
        ("mixtral", &["--ep", "on", "--dp", "2", "--backend", "sim"], &["--ep on", "--backend sim"]),
        ("mixtral", &["--dp", "2", "--prefill-coalescing", "on"], &["--prefill-coalescing", "--ep on"]),
        ("qwen3", &["--ep", "on", "--dp", "2"], &["--ep on", "no experts"]),
        ("mixtral", &["--ep", "on", "--dp", "64"], &["--ep on", "experts cannot be divided among 64"]),
    ];
    for (checkpoint, options, parts) in cases {
        let error = error_of(checkpoint, options);
        assert!(parts.iter().all(|part| error.contains(part)), "{options:?}: {error}");
    }
}
