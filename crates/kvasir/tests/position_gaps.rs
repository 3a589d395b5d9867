//! Sequences with positions removed from the middle: key pools and compressed entries begin at
//! fixed positions, whichever positions before them are missing, and both backends agree.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits};
use kvasir_exec::{Executor, Step};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Lowering, Plan, SeqId, StepId, Token, build};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_program::Model;
use kvasir_testkit::steps::{prompt, row_input, step};
use kvasir_testkit::{checkpoints, paths};
use std::ops::Range;
use std::sync::Arc;

/// Tokens before the removal.
const BEFORE: usize = 150;
/// Tokens after the removal.
const AFTER: usize = 40;

/// Prefills [`BEFORE`] tokens, removes the positions `removed` from the cache, and runs the other
/// tokens in steps of these lengths. Returns the logits of the tokens after the removal.
fn run(
    kind: CacheKind,
    removed: &[Range<u32>],
    steps: &[usize],
    mut execute: impl FnMut(Step) -> Vec<f32>,
) -> Vec<f32> {
    let mut cache = build(kind, &CacheConfig { block_size: 4, ..CacheConfig::new(256) }).unwrap();
    let seq = cache.open().unwrap();
    let (tokens, mut logits, mut at, mut id) = (prompt(BEFORE + AFTER, 3), Vec::new(), 0, 0);
    let mut feed = |cache: &mut dyn Cache, seq: SeqId, tokens: &[Token]| {
        id += 1;
        let step = step(cache, id, &[row_input(seq, tokens)]);
        let logits = execute(step);
        cache.retire(StepId(id)).unwrap();
        logits
    };
    feed(&mut *cache, seq, &tokens[..BEFORE]);
    for range in removed {
        cache.sequences().unwrap().remove(seq, range.clone()).unwrap();
    }
    for count in steps {
        logits.extend(feed(&mut *cache, seq, &tokens[BEFORE + at..][..*count]));
        at += count;
    }
    assert_eq!(at, AFTER);
    logits
}

fn on_cpu(model: &Arc<CpuModel>, kind: CacheKind, removed: &[Range<u32>], steps: &[usize]) -> Vec<f32> {
    let limits = Limits { slots: 320, tokens: 256, rows: 1, kv: KvType::F32, ring: None };
    let mut executor = CpuExecutor::new(Arc::clone(model), limits).unwrap();
    run(kind, removed, steps, |mut step| {
        executor.execute(&mut step, &[]).unwrap();
        step.output.logits
    })
}

fn on_plain(model: &PlainModel, removed: &[Range<u32>]) -> Vec<f32> {
    let limits = kvasir_plain::Limits { slots: 320, tokens: 256, rows: 1, states: None };
    let mut executor = PlainExecutor::new(model, limits);
    run(CacheKind::Cells, removed, &[AFTER], |mut step| {
        let mut lowered = Plan::default();
        Lowering::default().lower(&step.plan, &mut lowered);
        step.plan = lowered;
        let pending = executor.submit(Box::new(step)).unwrap();
        let (step, result) = executor.wait(pending);
        result.unwrap();
        step.output.logits
    })
}

fn max_abs_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn key_pools_after_a_gap_are_equal_on_both_backends() {
    let checkpoint = Checkpoint::open(&paths::model("deepseek_v4")).unwrap();
    let programs = Model::build(&checkpoint.source()).unwrap();
    let (plain, cpu) =
        (PlainModel::load(&programs, &checkpoint).unwrap(), checkpoints::exact("deepseek_v4", 2));
    let without_gaps = on_cpu(&cpu, CacheKind::Cells, &[], &[AFTER]);
    assert!(max_abs_difference(&without_gaps, &on_plain(&plain, &[])) < 1e-3);
    // Within a key pool, at the ends of key pools, the first key pool, and several.
    let single = [21..22, 24..60, 0..4, 0..133].map(|gap| vec![gap]);
    for removed in single.into_iter().chain([vec![5..11, 30..43, 90..146]]) {
        let removed = &removed[..];
        let logits = on_cpu(&cpu, CacheKind::Cells, removed, &[AFTER]);
        let error = max_abs_difference(&logits, &on_plain(&plain, removed));
        assert!(error < 1e-3, "{removed:?}: {error}");
        assert!(max_abs_difference(&logits, &without_gaps) > 1e-2, "{removed:?} changed nothing");
        for kind in [CacheKind::Paged, CacheKind::Radix] {
            let chunks = on_cpu(&cpu, kind, removed, &[1, 2, 3, 1, 20, 13]);
            assert!(chunks == logits, "{removed:?} in a {kind} cache");
        }
    }
}
