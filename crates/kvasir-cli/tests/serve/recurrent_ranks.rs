//! `kvasir serve --tp`, `--ep` and `--dp` of models with recurrent layers: answers are equal in
//! every configuration, and do not change when ranks or workers are killed.

use super::fleet::{Fleet, answer_all, request};
use super::ranks::ranks;
use super::server::{Server, model_of};
use std::sync::atomic::{AtomicUsize, Ordering};

fn serve(checkpoint: &str, options: &[&str]) -> Fleet {
    // Tests run concurrently, so each server has a model folder of its own.
    static SERVERS: AtomicUsize = AtomicUsize::new(0);
    let number = SERVERS.fetch_add(1, Ordering::Relaxed);
    let folder = model_of(&format!("recurrent-ranks-{number}"), checkpoint);
    // The plain backend has one thread.
    let threads = if options.contains(&"plain") { &[][..] } else { &["--threads", "2"] };
    let options = [threads, &["--max-model-len", "512"], options].concat();
    Fleet { server: Server::of_model(folder, &options, &[]) }
}

/// The answers of a server with these options.
fn answers(checkpoint: &str, options: &[&str]) -> Vec<Vec<(String, String, u64)>> {
    serve(checkpoint, options).answers()
}

#[test]
fn answers_of_ranks_are_equal_under_every_configuration() {
    let answers = |options: &[&str]| answers("qwen3_5_mtp", &[&["--tp", "2"], options].concat());
    let expected = answers(&[]);
    let configurations: [&[&str]; 14] = [
        &["--rank-control", "requests"],
        &["--rank-control", "requests", "--overlap", "on"],
        &["--rank-control", "requests", "--spec", "mtp:2"],
        &["--rank-control", "requests", "--spec", "ngram", "--state-memory", "100kB"],
        &["--rank-control", "requests", "--policy", "rectangular", "--state-interval", "32"],
        &["--spec", "mtp"],
        &["--policy", "prefill-first", "--spec", "ngram"],
        &["--cache", "cells"],
        &["--cache", "paged", "--block-size", "8"],
        &["--cache", "contiguous"],
        &["--cache", "tree", "--spec", "suffix"],
        &["--overlap", "on"],
        &["--kv-capacity", "2048", "--state-memory", "0"],
        &["--max-num-batched-tokens", "32", "--max-num-seqs", "3"],
    ];
    for options in configurations {
        assert_eq!(answers(options), expected, "{options:?}");
    }
}

/// One model per recurrence, with and without a mixture of experts.
#[test]
fn ranks_run_every_recurrence() {
    let cases = ["falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2_moe", "nemotron_h", "qwen3_next"];
    for case in cases {
        let expected = answers(case, &["--tp", "2"]);
        assert_eq!(answers(case, &["--tp", "2", "--rank-control", "requests"]), expected, "{case}");
    }
}

/// Includes Qwen4-Exp, whose n-gram embeddings have a recurrent state.
#[test]
fn ranks_run_recurrences_on_the_plain_backend() {
    for case in ["qwen3_5", "qwen4_exp"] {
        let plain = ["--backend", "plain", "--tp", "2"];
        let expected = answers(case, &plain);
        let by_requests = [&plain[..], &["--rank-control", "requests"]].concat();
        assert_eq!(answers(case, &by_requests), expected, "{case}");
    }
}

#[test]
fn killing_ranks_and_workers_changes_no_answer() {
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    for control in ["steps", "requests"] {
        let fleet = serve("qwen3_5", &["--dp", "2", "--tp", "2", "--rank-control", control]);
        let expected = answer_all(&fleet.server, &requests, |_| {});
        fleet.survive_kills(&requests, &expected, || ranks(&fleet));
    }
    let fleet = serve("lfm2", &["--dp", "2"]);
    let expected = answer_all(&fleet.server, &requests, |_| {});
    fleet.survive_kills(&requests, &expected, || fleet.processes());
}

#[test]
fn expert_parallel_engines_run_recurrent_layers() {
    for case in ["qwen3_5_moe", "nemotron_h_moe", "granitemoehybrid"] {
        let expected = answers(case, &["--dp", "1"]);
        for more in [&[][..], &["--spec", "ngram"], &["--overlap", "on"]] {
            let options = [&["--dp", "2", "--ep", "on"], more].concat();
            assert_eq!(answers(case, &options), expected, "{case} {more:?}");
        }
    }
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    let fleet = serve("qwen3_5_moe", &["--dp", "2", "--ep", "on"]);
    let expected = answer_all(&fleet.server, &requests, |_| {});
    fleet.survive_kills(&requests, &expected, || fleet.processes());
}
