//! `kvasir serve --tp`: answers are deterministic across options and rank kills, and no process
//! outlives the server.

use super::fleet::{Fleet, answer_all, converted, request, shared_weights, signal, wait_for_exit};
use super::server::{Server, model};
use kvasir_testkit::paths;
use std::{fs, process::Command};

/// Ids of the child processes of a worker: its ranks other than 0.
fn children(process: u64) -> Vec<u64> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let lists: String = lists.collect();
    lists.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Ids of all ranks other than 0.
pub(super) fn ranks(fleet: &Fleet) -> Vec<u64> {
    fleet.processes().into_iter().flat_map(children).collect()
}

#[test]
fn answers_are_equal_under_every_configuration() {
    let requests: Vec<_> = (0..12).map(|number| request(number, 40)).collect();
    let answers = |options: &[&str]| {
        let options = [&["--tp", "2"], options].concat();
        let fleet = Fleet::start("ranks-matrix", 1, &options);
        let answers = answer_all(&fleet.server, &requests, |_| {});
        fleet.wait_until_idle();
        answers
    };
    let expected = answers(&[]);
    let configurations: [&[&str]; 13] = [
        &[],
        &["--rank-control", "requests"],
        &["--rank-control", "requests", "--overlap", "on"],
        &["--rank-control", "requests", "--spec", "suffix", "--cache", "cells"],
        &["--rank-control", "requests", "--policy", "rectangular"],
        &["--cache", "cells"],
        &["--cache", "paged", "--block-size", "8"],
        &["--cache", "contiguous"],
        &["--cache", "tree", "--spec", "suffix"],
        &["--policy", "prefill-first", "--spec", "ngram"],
        &["--policy", "rectangular"],
        &["--overlap", "on"],
        &["--max-num-batched-tokens", "32", "--max-num-seqs", "3"],
    ];
    for options in configurations {
        assert_eq!(answers(options), expected, "{options:?}");
    }
}

#[test]
fn replicas_share_the_packed_weights_of_each_rank() {
    let requests: Vec<_> = (0..12).map(|number| request(number, 40)).collect();
    let options = ["--dp", "2", "--tp", "2", "--threads", "2", "--max-model-len", "512"];
    let fleet = Fleet { server: Server::of_model(converted("ranks-packed", "q8_0"), &options, &[]) };
    answer_all(&fleet.server, &requests, |_| {});
    for processes in [fleet.processes(), ranks(&fleet)] {
        let command = fs::read_to_string(format!("/proc/{}/cmdline", processes[0])).unwrap();
        assert!(command.split('\0').any(|argument| argument == "--packed-weights"), "{command}");
        let [first, second] = [0, 1].map(|n| shared_weights(processes[n]));
        assert_eq!(first.0, second.0, "one file");
        let (resident, proportional) = (first.1 + second.1, first.2 + second.2);
        assert!(resident > 0 && proportional * 4 < resident * 3, "{first:?} {second:?}");
    }
}

/// The plain backend computes in f32, so its answers are not those of the CPU backend.
#[test]
fn ranks_run_on_the_plain_backend() {
    let requests: Vec<_> = (0..6).map(|number| request(number, 12)).collect();
    let answers = |more: &[&str]| {
        let options =
            [&["--backend", "plain", "--tp", "2", "--dp", "1", "--max-model-len", "512"], more].concat();
        answer_all(&Server::start("ranks-plain", &options), &requests, |_| {})
    };
    let expected = answers(&[]);
    assert_eq!(answers(&["--policy", "rectangular"]), expected);
    assert_eq!(answers(&["--overlap", "on", "--batch-sizes", "1,4,8"]), expected);
}

/// Draft models are not sharded: rank 0 runs them.
#[test]
fn draft_models_change_no_answer() {
    let requests: Vec<_> = (0..24).map(|number| request(number, 60)).collect();
    let serve = |case: &str, options: &[&str]| {
        let folder = model(&format!("ranks-draft-{case}"));
        for file in fs::read_dir(paths::model(case)).unwrap().map(Result::unwrap) {
            if file.path().is_file() {
                fs::copy(file.path(), folder.join(file.file_name())).unwrap();
            }
        }
        let common = ["--tp", "2", "--dp", "2", "--threads", "2", "--max-model-len", "512"];
        Fleet { server: Server::of_model(folder, &[&common, options].concat(), &[]) }
    };
    let qwen3 = paths::model("eagle3_qwen3");
    let drafts = [
        ("qwen3_mtp", "mtp:3".to_owned()),
        ("eagle3_qwen3", format!("eagle3:{},depth=3,topk=2,nodes=5", qwen3.join("draft").display())),
        ("eagle3_qwen3", format!("draft:{},depth=3", qwen3.display())),
    ];
    for (case, spec) in &drafts {
        let expected = answer_all(&serve(case, &[]).server, &requests, |_| {});
        for control in ["steps", "requests"] {
            let fleet = serve(case, &["--spec", spec, "--rank-control", control]);
            assert_eq!(answer_all(&fleet.server, &requests, |_| {}), expected, "{spec}, {control}");
            // The ranks are replaced with their draft models.
            signal(ranks(&fleet)[0], "-KILL");
            assert_eq!(answer_all(&fleet.server, &requests, |_| {}), expected, "{spec}, {control}");
            fleet.wait_until_ready();
            fleet.wait_until_idle();
            let page = fleet.server.send("GET", "/metrics", "", "").1;
            let drafted = page.lines().find(|line| line.starts_with("kvasir:spec_decode_num_drafts_total{"));
            assert!(!drafted.unwrap().ends_with(" 0"), "{spec}, {control}");
        }
    }
}

#[test]
fn killing_ranks_changes_no_answer() {
    kill_ranks("ranks-killed", &[]);
    kill_ranks("ranks-killed-requests", &["--rank-control", "requests"]);
}

fn kill_ranks(name: &str, options: &[&str]) {
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    let fleet = Fleet::start(name, 2, &[&["--tp", "2"], options].concat());
    assert_eq!((fleet.processes().len(), ranks(&fleet).len()), (2, 2));
    let expected = answer_all(&fleet.server, &requests, |_| {});
    fleet.survive_kills(&requests, &expected, || ranks(&fleet));
}

#[test]
fn an_idle_engine_restarts_when_a_rank_ends() {
    let fleet = Fleet::start("ranks-idle", 1, &["--tp", "2", "--memory-utilization", "0.5"]);
    let (workers, ranks) = (fleet.processes(), ranks(&fleet));
    signal(ranks[0], "-KILL");
    fleet.wait_until("restarted", |replicas| replicas[0]["restarts"] == 1 && replicas[0]["phase"] == "ready");
    wait_for_exit(&[workers, ranks].concat());
    let answers = answer_all(&fleet.server, &[request(0, 8)], |_| {});
    assert!(!answers[0].is_empty());
}

/// `--tp` alone also starts a worker process behind the front, which restarts it.
#[test]
fn ranks_end_with_the_server() {
    let start = |name: &str| {
        let options = ["--tp", "2", "--threads", "2", "--max-model-len", "512"];
        let fleet = Fleet { server: Server::start(name, &options) };
        let processes = [fleet.processes(), ranks(&fleet)].concat();
        assert_eq!(processes.len(), 2);
        (fleet, processes)
    };
    let (mut fleet, processes) = start("ranks-front");
    fleet.server.process.kill().unwrap();
    fleet.server.process.wait().unwrap();
    wait_for_exit(&processes);
    let (mut fleet, processes) = start("ranks-again");
    fleet.server.terminate();
    assert!(fleet.server.process.wait().unwrap().success());
    wait_for_exit(&processes);
    // Ranks exit when their worker is killed.
    let (fleet, processes) = start("ranks-worker");
    signal(processes[0], "-KILL");
    wait_for_exit(&processes);
    fleet.wait_until_ready();
}

#[test]
fn invalid_tensor_parallel_options_are_errors() {
    let folder = model("ranks-refused");
    let error_of = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.arg("serve").arg(&folder).args(["--port", "0"]).args(options);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let simulated = error_of(&["--tp", "2", "--backend", "sim"]);
    assert!(simulated.contains("--tp") && simulated.contains("--backend sim"), "{simulated}");
    let uneven = error_of(&["--tp", "64"]);
    assert!(uneven.contains("--tp 64"), "{uneven}");
    assert!(error_of(&["--tp", "0"]).contains("--tp"));
    fs::remove_dir_all(&folder).unwrap();
}
