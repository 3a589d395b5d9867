//! Models with recurrent layers on both backends: recorded tokens and logits for every chunk size,
//! and logits that do not depend on how a request runs, bit for bit.
//!
//! Compared to each request alone: batched, chunked, after a prefix cache hit at a checkpoint,
//! after preemption, with siblings, with drafts of any acceptance, on every cache under every policy.
#![allow(clippy::unwrap_used)] // helpers of tests

mod backend;
#[path = "../common/mod.rs"]
mod common;
mod setup;

use backend::Backend;
use common::{Coverage, Outputs, compare, run_each};
use kvasir_engine::{Params, Request};
use kvasir_formats::Checkpoint;
use kvasir_kv::{CacheKind, Token};
use kvasir_program::Model;
use kvasir_testkit::paths;
use kvasir_testkit::steps::prompt;
use serde_json::Value as Json;
use setup::{ALONE, Drafts, Setup};
use std::path::Path;

/// A model with recurrent layers on one backend.
struct Case {
    name: String,
    model: Backend,
    expected: Json,
}

/// A model of each recurrence, and one with a prediction layer.
const ONE_PER_RECURRENCE: [&str; 5] = ["falcon_h1", "kimi_linear", "lfm2", "qwen3_5_mtp", "qwen4_exp"];

/// The models for tests of many setups: [`ONE_PER_RECURRENCE`], or all in the folder
/// `KVASIR_MODELS`.
fn cases_of_setups() -> impl Iterator<Item = Case> {
    let takes_all = std::env::var_os("KVASIR_MODELS").is_some();
    cases(move |name| takes_all || ONE_PER_RECURRENCE.contains(&name))
}

/// The recorded checkpoints with recurrent layers whose names are `chosen`, each on every backend
/// that runs it: those of the repository, or those in the folder `KVASIR_MODELS`.
fn cases(chosen: impl Fn(&str) -> bool) -> impl Iterator<Item = Case> {
    let mut all = paths::models();
    all.retain(|path| path.join("expected.json").exists());
    all.retain(|path| program(path).is_some_and(|(model, _)| model.target.is_recurrent()));
    assert!(all.len() >= 10, "only {} recurrent models", all.len());
    all.retain(|path| chosen(&path.file_name().unwrap().to_string_lossy()));
    all.into_iter().flat_map(|path| {
        let (model, checkpoint) = program(&path).unwrap();
        let text = std::fs::read_to_string(path.join("expected.json")).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Backend::all(&model, &checkpoint).into_iter().map(move |(backend, model)| Case {
            name: format!("{name} on {backend}"),
            model,
            expected: serde_json::from_str(&text).unwrap(),
        })
    })
}

/// The programs of a checkpoint; `None` for an unknown architecture.
fn program(path: &Path) -> Option<(Model, Checkpoint)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    Some((Model::build(&checkpoint.source()).ok()?, checkpoint))
}

fn ids(json: &Json) -> Vec<Token> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

/// Requests with common prefixes and various temperatures. Two of them repeat themselves, so that
/// n-gram drafts are proposed.
fn requests(model: &Backend) -> Vec<Request> {
    let shared = [prompt(20, 1), prompt(20, 1), prompt(13, 7)].concat();
    common::requests(model.program(), &shared, [14, 14, 12, 9, 20, 6])
}

/// The outputs of each request and each of its `n` siblings, run alone.
fn run_alone(model: &Backend, requests: &[Request], n: u64) -> Outputs {
    run_each(requests, n, |one| ALONE.run(model, one, 1, &Outputs::new(), &mut Coverage::default()))
}

/// Runs the requests of a case in each setup and compares them to each request alone.
fn check(case: &Case, setups: impl IntoIterator<Item = Setup>, n: u32) -> Coverage {
    let requests = requests(&case.model);
    let expected = run_alone(&case.model, &requests, n.into());
    let mut coverage = Coverage::default();
    for setup in setups {
        let outputs = setup.run(&case.model, &requests, n, &expected, &mut coverage);
        compare(&format!("{} {setup:?}", case.name), &expected, &outputs);
    }
    println!("{}: {coverage:?}", case.name);
    coverage
}

/// Every cache under every policy that works with it.
fn setups(policies: &[&'static str]) -> Vec<Setup> {
    let pairs = CacheKind::ALL.iter().flat_map(|cache| policies.iter().map(move |policy| (*cache, *policy)));
    let valid = pairs.filter(|(cache, policy)| *policy != "rectangular" || cache.is_block_based());
    valid.map(|(cache, policy)| Setup { cache, policy, checkpoints: 12, ..ALONE }).collect()
}

#[test]
fn every_chunk_size_gives_the_recorded_tokens_and_logits() {
    for case in cases(|_| true) {
        let setups = [
            (CacheKind::Contiguous, "tokens"),
            (CacheKind::Tree, "whole"),
            (CacheKind::Cells, "chunked"),
            (CacheKind::Paged, "rectangular"),
            (CacheKind::Radix, "tokens"),
        ];
        for (cache, policy) in setups {
            let setup = Setup { cache, policy, checkpoints: 12, ..ALONE };
            let mut max_error: f32 = 0.0;
            for (prompt, greedy) in case.expected["greedy"].as_object().unwrap() {
                let (context, expected) =
                    (format!("{} {prompt} {setup:?}", case.name), ids(&greedy["tokens"]));
                let max_tokens = expected.len() as u32;
                let params = Params { max_tokens, ignore_eos: true, ..Params::default() };
                let request = Request { tag: 1, prompt: ids(&case.expected["prompts"][prompt]), params };
                if request.prompt.len() + expected.len() > 200 {
                    continue;
                }
                let last = request.prompt.len() as u32 - 1;
                let outputs =
                    setup.run(&case.model, &[request], 1, &Outputs::new(), &mut Coverage::default());
                assert_eq!(outputs[&1].0, expected, "{context}");
                let logits = case.expected["final_logits"][prompt].as_array().unwrap();
                for (ours, recorded) in outputs[&1].1[&last].iter().zip(logits) {
                    max_error =
                        max_error.max((f32::from_bits(*ours) - recorded.as_f64().unwrap() as f32).abs());
                }
            }
            assert!(max_error < 1e-3, "{} {setup:?}: logits differ by {max_error}", case.name);
        }
    }
}

#[test]
fn logits_are_bit_identical_under_every_cache_and_policy() {
    for case in cases_of_setups() {
        let all = setups(&["whole", "prefill-first", "chunked", "mixed", "rectangular"]);
        let all = all.into_iter().enumerate().map(|(at, setup)| Setup { overlap: at % 2 == 1, ..setup });
        let coverage = check(&case, all, 1);
        assert!(coverage.hits >= 8 && coverage.batched > 50, "{}: {coverage:?}", case.name);
    }
}

#[test]
fn preemption_leaves_logits_bit_identical() {
    for case in cases_of_setups() {
        let all = setups(&["chunked", "mixed", "rectangular"]).into_iter().enumerate();
        let all = all.map(|(at, setup)| Setup {
            // Slots for one whole sequence and a part of another.
            slots: if at % 2 == 0 { 104 } else { 800 },
            checkpoints: [0, 3, 12][at % 3],
            overlap: at % 4 < 2,
            preempts: true,
            ..setup
        });
        let coverage = check(&case, all, 1);
        assert!(coverage.preemptions > 20, "{}: {coverage:?}", case.name);
    }
}

#[test]
fn siblings_of_a_recurrent_model_share_their_prompt() {
    for case in cases_of_setups() {
        let kinds = [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix];
        let setups =
            kinds.map(|cache| Setup { cache, policy: "mixed", slots: 800, checkpoints: 12, ..ALONE });
        let coverage = check(&case, setups, 3);
        assert!(coverage.hits > 6, "{}: {coverage:?}", case.name);
    }
}

#[test]
fn drafts_do_not_change_recurrent_states() {
    let mut with_mtp = 0;
    for case in cases_of_setups() {
        let check_drafts = |drafts, policies: &[&'static str]| {
            let setups = setups(policies);
            check(&case, setups.into_iter().map(|setup| Setup { drafts, ..setup }), 1)
        };
        let coverage = check_drafts(Drafts::Oracle, &["chunked", "mixed"]);
        assert!(coverage.rejected > 20 && coverage.accepted > 100, "{}: {coverage:?}", case.name);
        let coverage = check_drafts(Drafts::Ngram, &["mixed"]);
        assert!(coverage.rejected > 5, "{}: {coverage:?}", case.name);
        if case.expected["mtp"].is_object() {
            let coverage = check_drafts(Drafts::Mtp, &["chunked", "mixed"]);
            assert!(coverage.rejected > 20, "{}: {coverage:?}", case.name);
            with_mtp += 1;
        }
    }
    assert!(with_mtp > 0, "no case has a prediction layer");
}
