//! `kvasir serve` of models with sliding-window layers: answers are equal whether these layers have
//! KV pools of their own or join the full group, on one process and on ranks.

use super::fleet::{Fleet, answer_all, request};
use super::ranks::ranks;
use super::server::{Server, model_of};
use std::sync::atomic::{AtomicU32, Ordering};

const LIMITS: [&str; 4] = ["--threads", "2", "--max-model-len", "512"];
const MODELS: [&str; 3] = ["gemma3", "gemma4_ple", "gpt_oss"];

/// Number of model folders so far. Each server has its own, so that no test writes files that
/// another test's server maps.
static FOLDERS: AtomicU32 = AtomicU32::new(0);

fn serve(checkpoint: &str, options: &[&str]) -> Fleet {
    let folder = model_of(&format!("windows-{}", FOLDERS.fetch_add(1, Ordering::Relaxed)), checkpoint);
    Fleet { server: Server::of_model(folder, &[&LIMITS, options].concat(), &[]) }
}

/// The answers of a server with these options.
fn answers(checkpoint: &str, options: &[&str]) -> Vec<Vec<(String, String, u64)>> {
    serve(checkpoint, options).answers()
}

/// Configurations under which sliding-window layers have KV pools of their own.
const SEPARATE: [&[&str]; 7] = [
    &["--cache", "cells"],
    &["--cache", "paged", "--block-size", "8"],
    &["--overlap", "on"],
    &["--policy", "prefill-first", "--spec", "ngram"],
    &["--max-num-batched-tokens", "32", "--max-num-seqs", "3"],
    &["--kv-capacity", "1024"],
    &["--prefix-cache", "off"],
];

/// Configurations under which sliding-window layers join the full group.
const JOINED: [&[&str]; 3] =
    [&["--cache", "contiguous"], &["--cache", "tree", "--spec", "suffix"], &["--policy", "rectangular"]];

#[test]
fn window_pools_change_no_answer() {
    for case in MODELS {
        let expected = answers(case, &["--dp", "1"]);
        for options in SEPARATE.iter().chain(&JOINED) {
            assert_eq!(answers(case, &[&["--dp", "1"], *options].concat()), expected, "{case} {options:?}");
        }
        let roles = ["--dp", "2", "--role", "prefill,decode"];
        assert_eq!(answers(case, &roles), expected, "{case}");
    }
}

#[test]
fn ranks_have_the_window_pools_of_rank_0() {
    for case in MODELS {
        let ranks = |options: &[&str]| answers(case, &[&["--tp", "2"], options].concat());
        let expected = ranks(&[]);
        let by_requests = ["--rank-control", "requests"];
        assert_eq!(ranks(&by_requests), expected, "{case}");
        for options in SEPARATE.iter().chain(&JOINED[..1]) {
            assert_eq!(ranks(options), expected, "{case} {options:?}");
        }
        let with_drafts = [&by_requests[..], &["--spec", "ngram", "--kv-capacity", "1024"]].concat();
        assert_eq!(ranks(&with_drafts), expected, "{case}");
    }
}

#[test]
fn killed_ranks_of_a_window_model_change_no_answer() {
    let requests: Vec<_> = (0..48).map(|number| request(number, 100)).collect();
    let fleet = serve("gemma3", &["--dp", "2", "--tp", "2"]);
    let expected = answer_all(&fleet.server, &requests, |_| {});
    fleet.survive_kills(&requests, &expected, || ranks(&fleet));
}
