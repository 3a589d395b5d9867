//! Models with sliding-window layers that have KV pools of their own: logits are bit-identical to
//! those of each request alone in one pool.
//!
//! The requests run batched, chunked, after a prefix hit, after preemption, with siblings and with
//! drafts, on every cache with window groups, under every policy, on both backends. Conversations
//! are longer than the windows.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

#[path = "../common/mod.rs"]
mod common;
mod sessions;
mod setup;

use common::{Coverage, Outputs, compare, request, run_each};
use kvasir::{BackendKind, JoinReason, LoadedModel, OpenedModel, Precision};
use kvasir_engine::{Request, SessionId};
use kvasir_kv::{CacheKind, GroupId, GroupKind};
use kvasir_testkit::{paths, steps::prompt};
use setup::{ALONE, BLOCK, Drafts, Setup, Windows};

/// Models whose windows of 16 to 24 tokens are shorter than the prompts: alternating windows, K = V,
/// shared K/V, mixtures of experts, attention sinks, windows in all layers.
const MODELS: [&str; 8] =
    ["gemma3", "gemma4_dense", "gemma4_moe", "gemma4_ple", "gpt_oss", "mistral", "olmo3", "qwen3_yarn_swa"];
/// The caches with window groups.
const KINDS: [CacheKind; 3] = [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix];

struct Case {
    name: String,
    loaded: LoadedModel,
}

/// Each model on each backend.
fn cases() -> impl Iterator<Item = Case> {
    let backends = [BackendKind::Cpu, BackendKind::Plain];
    MODELS.iter().flat_map(move |model| {
        backends.clone().map(|backend| {
            let name = format!("{model} on {backend:?}");
            let opened = OpenedModel::open(&paths::model(model)).unwrap();
            Case { name, loaded: opened.load(backend, Precision::F32, Some(2)).unwrap() }
        })
    })
}

/// Requests with common prefixes and various temperatures. Two of them repeat themselves, so that
/// n-gram drafts are proposed.
fn requests(loaded: &LoadedModel) -> Vec<Request> {
    let shared = [prompt(20, 1), prompt(20, 1), prompt(30, 7)].concat();
    common::requests(loaded.program(), &shared, [14, 40, 12, 9, 30, 6])
}

/// The outputs of each request and each of its `n` siblings, run alone.
fn run_alone(loaded: &LoadedModel, requests: &[Request], n: u64) -> Outputs {
    run_each(requests, n, |one| ALONE.run(loaded, one, 1, &Outputs::new(), &mut Coverage::default()))
}

/// Runs the requests of a case in each setup and compares them to each request alone.
fn check(case: &Case, setups: impl IntoIterator<Item = Setup>, n: u32) -> Coverage {
    let requests = requests(&case.loaded);
    let expected = run_alone(&case.loaded, &requests, n.into());
    let mut coverage = Coverage::default();
    for setup in setups {
        let outputs = setup.run(&case.loaded, &requests, n, &expected, &mut coverage);
        compare(&format!("{} {setup:?}", case.name), &expected, &outputs);
    }
    println!("{}: {coverage:?}", case.name);
    coverage
}

/// Every cache with window groups under these policies.
fn setups(policies: &[&'static str]) -> Vec<Setup> {
    let pairs = KINDS.iter().flat_map(|cache| policies.iter().map(move |policy| (*cache, *policy)));
    let windows = Windows::Configured;
    pairs.map(|(cache, policy)| Setup { cache, policy, slots: 800, windows, ..ALONE }).collect()
}

#[test]
fn the_configuration_decides_which_layers_have_pools_of_their_own() {
    for case in cases() {
        let window = case.loaded.program().windows()[0];
        for setup in setups(&["chunked"]) {
            let engine = setup.engine(&case.loaded, &Outputs::new());
            let shape = engine.core().cache().shape();
            assert!(shape.groups.iter().any(|(_, kind)| kind == GroupKind::Window(window)), "{}", case.name);
            assert!(shape.windows[0].capacity < 800, "{}: {:?}", case.name, shape.windows);
        }
        let joined = [
            (CacheKind::Contiguous, "chunked", JoinReason::Cache(CacheKind::Contiguous)),
            (CacheKind::Paged, "rectangular", JoinReason::StaticShapes),
        ];
        for (cache, policy, reason) in joined {
            let windows = Windows::Configured;
            let resolved = Setup { cache, policy, windows, ..ALONE }.resolve(&case.loaded);
            assert_eq!((resolved.division.joined_windows, resolved.cache.windows.len()), (Some(reason), 0));
        }
    }
}

#[test]
fn logits_are_bit_identical_under_every_cache_and_policy() {
    for case in cases() {
        let all = setups(&["whole", "prefill-first", "chunked", "mixed", "tokens"]);
        let all = all.into_iter().enumerate().map(|(at, setup)| Setup { overlap: at % 2 == 1, ..setup });
        let coverage = check(&case, all, 1);
        assert!(coverage.hits >= 8 && coverage.batched > 40, "{}: {coverage:?}", case.name);
    }
}

#[test]
fn preemption_and_full_window_pools_leave_logits_bit_identical() {
    for case in cases() {
        let all = setups(&["chunked", "mixed"]).into_iter().enumerate();
        let all = all.map(|(at, setup)| Setup {
            slots: if at % 2 == 0 { 136 } else { 800 },
            windows: Windows::Tight,
            overlap: at % 4 < 2,
            preempts: at % 3 != 0,
            ..setup
        });
        let coverage = check(&case, all, 1);
        assert!(coverage.preemptions > 10, "{}: {coverage:?}", case.name);
    }
}

#[test]
fn siblings_share_the_windows_of_their_prompt() {
    for case in cases() {
        let coverage = check(&case, setups(&["mixed"]), 3);
        assert!(coverage.hits > 6, "{}: {coverage:?}", case.name);
    }
}

#[test]
fn rejected_drafts_leave_windows_complete() {
    for case in cases() {
        let with_drafts = |drafts, policies: &[&'static str], windows| {
            setups(policies).into_iter().map(move |setup| Setup { drafts, windows, ..setup })
        };
        let coverage = check(&case, with_drafts(Drafts::Oracle, &["chunked", "mixed"], Windows::Tight), 1);
        assert!(coverage.rejected > 20 && coverage.accepted > 50, "{}: {coverage:?}", case.name);
        let coverage = check(&case, with_drafts(Drafts::Ngram, &["mixed"], Windows::Configured), 1);
        assert!(coverage.rejected > 5, "{}: {coverage:?}", case.name);
    }
}

/// A conversation of five turns, each of which continues the text of all before it.
#[test]
fn conversations_longer_than_the_window_hit_their_history() {
    for case in cases() {
        for (kind, is_session) in [
            (CacheKind::Paged, false),
            (CacheKind::Radix, false),
            (CacheKind::Radix, true),
            (CacheKind::Cells, true),
        ] {
            let setup = Setup { cache: kind, ..setups(&["mixed"])[0] };
            let mut engine = setup.engine(&case.loaded, &Outputs::new());
            let mut history = Vec::new();
            for turn in 0..5 {
                let context = format!("{}, {kind}, session {is_session}, turn {turn}", case.name);
                history.extend(prompt(31, turn + 1));
                let mut next = request(case.loaded.program(), turn as u64, history.clone(), 9, 0.0);
                // RoPE of these models does not depend on the length, so all turns have one salt.
                let expected = run_alone(&case.loaded, std::slice::from_ref(&next), 1);
                next.params.session = is_session.then_some(SessionId(1));
                let mut coverage = Coverage::default();
                let outputs = setup.run_on(&mut engine, &[next], 1, &mut coverage);
                compare(&context, &expected, &outputs);
                let earlier = history.len() as u32 - 31;
                // The last output of the previous turn has no K/V.
                let block = if kind.is_block_based() { BLOCK } else { 1 };
                let cached = earlier.saturating_sub(1) / block * block;
                assert_eq!(coverage.cached, cached, "{context}");
                history.extend(&outputs[&(turn as u64 * 10)].0);
            }
            let cache = engine.core().cache();
            let window = cache.shape().windows[0];
            let (full, held) = (cache.usage(), cache.usage_of(GroupId(1)));
            assert!(held.held <= window.slots_per_sequence(cache.shape().block_size), "{full:?} {held:?}");
        }
    }
}
