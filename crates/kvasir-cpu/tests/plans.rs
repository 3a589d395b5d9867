//! Layout invariance: a sequence gets bit-identical logits under every kind of plan.
//!
//! - Contiguous and paged caches, ragged batches, forks, and frozen prefixes.
//! - Draft trees, redirected writes, and sliding windows in cells and in rings.
//! - An explicit mask in place of each.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{CpuExecutor, CpuModel, FrozenPool, KvType, Limits, Pool};
use kvasir_exec::{Step, StepError};
use kvasir_kv::{
    Cache, Cells, Contiguous, Lowering, Paged, Plan, PoolId, Rings, SeqId, StepId, Token, TreeCache,
    blocks::BlockConfig,
};
use kvasir_program::LayerFacts;
use kvasir_testkit::checkpoints::{close, exact, narrow};
use kvasir_testkit::steps::{RowInput, prompt, row_input, step};
use std::sync::Arc;

/// Models with sparse latent attention (MLA with an indexer), sinks with windows, mixed window and
/// full layers, windows alone, MoE, shared K/V, and compressed entries. Each has three setups:
/// exact f32, and quantized weights with the next two KV types of a cycle. One more setup is a MoE
/// model at `Precision::Bf16x2`.
fn setups() -> Vec<(String, Arc<CpuModel>, KvType)> {
    let mut setups = Vec::new();
    let mut kinds = KvType::ALL.into_iter().cycle();
    let cases = [
        "deepseek_v32",
        "gpt_oss",
        "gemma3",
        "mistral",
        "qwen3_moe",
        "gemma4_ple",
        "gemma4_moe",
        "deepseek_v4",
    ];
    for case in cases {
        setups.push((format!("{case}, exact"), exact(case, 2), KvType::F32));
        let model = narrow(case, 2);
        for kind in kinds.by_ref().take(2) {
            setups.push((format!("{case}, {kind}"), Arc::clone(&model), kind));
        }
    }
    setups.push(("deepseek_v3_bf16".to_owned(), close("deepseek_v3_bf16", 2), KvType::F32));
    setups
}

fn executor(model: &Arc<CpuModel>, kv: KvType) -> CpuExecutor {
    let limits = Limits { slots: 512, tokens: 256, rows: 8, kv, ring: None };
    CpuExecutor::new(Arc::clone(model), limits).unwrap()
}

/// Runs a step, then again over the same pool under an explicit mask; returns each token's logits.
fn run(executor: &mut CpuExecutor, cache: &mut dyn Cache, id: u64, inputs: &[RowInput]) -> Vec<Vec<f32>> {
    let mut step = step(cache, id, inputs);
    executor.execute(&mut step, &[]).unwrap();
    let logits = step.output.logits.clone();
    let mut explicit = Plan::default();
    Lowering::default().lower(&step.plan, &mut explicit);
    // The slot copies were done by the first run.
    explicit.moves.clear();
    step.plan = explicit;
    executor.execute(&mut step, &[]).unwrap();
    assert!(step.output.logits == logits, "an explicit mask says something else in step {id}");
    cache.retire(StepId(id)).unwrap();
    logits.chunks(executor.program().vocab).map(<[f32]>::to_vec).collect()
}

/// Logits of the tokens as the only sequence of a contiguous cache, in one step.
fn reference_logits(model: &Arc<CpuModel>, kv: KvType, tokens: &[Token]) -> Vec<Vec<f32>> {
    let mut cache = Contiguous::new(256);
    let seq = cache.open().unwrap();
    run(&mut executor(model, kv), &mut cache, 1, &[row_input(seq, tokens)])
}

fn same(about: &str, got: &[Vec<f32>], wanted: &[Vec<f32>]) {
    assert_eq!(got.len(), wanted.len(), "{about}");
    for (at, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        assert!(got == wanted, "{about}: row {at}");
    }
}

#[test]
fn ragged_batches_and_forks() {
    for (about, model, kv) in setups() {
        let mut executor = executor(&model, kv);
        let mut cache = Cells::new(256, 8, None).unwrap();
        let seqs: Vec<SeqId> = (0..3).map(|_| cache.open().unwrap()).collect();
        let prompts = [prompt(70, 1), prompt(7, 2), prompt(29, 3)];
        let wanted: Vec<_> = prompts.iter().map(|p| reference_logits(&model, kv, p)).collect();
        let mut at = [0; 3];
        for (id, take) in (1..).zip([[9, 1, 4], [1, 1, 1], [45, 3, 2], [15, 2, 22]]) {
            let inputs: Vec<RowInput> =
                (0..3).map(|i| row_input(seqs[i], &prompts[i][at[i]..at[i] + take[i]])).collect();
            let rows = run(&mut executor, &mut cache, id, &inputs);
            let mut first = 0;
            for i in 0..3 {
                same(&about, &rows[first..first + take[i]], &wanted[i][at[i]..at[i] + take[i]]);
                (first, at[i]) = (first + take[i], at[i] + take[i]);
            }
        }
        // Forks share the reads of their common prefix, and continue as the original would.
        let forks = cache.sequences().unwrap().fork(seqs[0], 2).unwrap();
        let tails: [&[Token]; 3] = [&[5, 6], &[7, 8, 9], &[5]];
        let inputs: Vec<RowInput> = [seqs[0], forks[0], forks[1]]
            .iter()
            .zip(tails)
            .map(|(seq, tail)| row_input(*seq, tail))
            .collect();
        let rows = run(&mut executor, &mut cache, 9, &inputs);
        let mut first = 0;
        for tail in tails {
            let wanted = reference_logits(&model, kv, &[&prompts[0][..], tail].concat());
            same(&about, &rows[first..first + tail.len()], &wanted[70..]);
            first += tail.len();
        }
    }
}

#[test]
fn a_frozen_prefix_in_front() {
    for (about, model, kv) in setups() {
        let all = prompt(90, 4);
        let wanted = reference_logits(&model, kv, &all);
        let mut first = executor(&model, kv);
        let mut cache = Contiguous::new(128);
        let seq = cache.open().unwrap();
        run(&mut first, &mut cache, 1, &[row_input(seq, &all[..69])]);
        let prefix = cache.freeze(PoolId(7)).unwrap();
        let mut second = executor(&model, kv);
        let mut fork = prefix.fork(64).unwrap();
        let seq = fork.open().unwrap();
        let mut unattached = step(&mut fork, 1, &[row_input(seq, &all[69..72])]);
        assert!(matches!(second.execute(&mut unattached, &[]), Err(StepError::Failed(_))));
        fork.cancel(StepId(1)).unwrap();
        // Another head split with equally many bytes per token: its rows lie elsewhere.
        let other = |facts: &LayerFacts| {
            let all = facts.kv_heads;
            let [key_dim, value_dim] = [facts.key_dim, facts.value_dim].map(|dim| dim * all);
            LayerFacts { kv_heads: 1, key_dim, value_dim, window: facts.window.or(Some(7)), ..*facts }
        };
        let layers: Vec<LayerFacts> = model.program().layers.iter().map(other).collect();
        let other_model = FrozenPool::from(Arc::new(Pool::new(&layers, kv, 512).unwrap()));
        assert!(second.attach(PoolId(7), other_model).unwrap_err().contains("another model"));
        second.attach(PoolId(7), first.into_pool()).unwrap();
        same(&about, &run(&mut second, &mut fork, 2, &[row_input(seq, &all[69..72])]), &wanted[69..72]);
        same(&about, &run(&mut second, &mut fork, 3, &[row_input(seq, &all[72..])]), &wanted[72..]);
    }
}

#[test]
fn draft_trees_and_slot_copies_of_a_commit() {
    for (about, model, kv) in setups() {
        for cells in [false, true] {
            let mut cache: Box<dyn Cache> = if cells {
                Box::new(Cells::new(128, 4, None).unwrap())
            } else {
                Box::new(TreeCache::new(128))
            };
            let mut executor = executor(&model, kv);
            let seq = cache.open().unwrap();
            let start = prompt(30, 5);
            run(&mut executor, &mut *cache, 1, &[row_input(seq, &start)]);
            // Draft tree: node 0 is the newest token; 1 and 2 follow it, 3 follows 1, 4 and 5
            // follow 2.
            let (tokens, parents) = ([400, 10, 20, 30, 40, 50], [0, 0, 1, 2, 2]);
            let frontier: Vec<i32> = [-1].into_iter().chain(parents).collect();
            cache.tree().unwrap().propose(seq, &frontier).unwrap();
            let drafted = RowInput { parents: parents.to_vec(), ..row_input(seq, &tokens) };
            let rows = run(&mut executor, &mut *cache, 2, &[drafted]);
            let paths: [&[usize]; 6] = [&[0], &[0, 1], &[0, 2], &[0, 1, 3], &[0, 2, 4], &[0, 2, 5]];
            for (node, path) in paths.iter().enumerate() {
                let all: Vec<Token> = start.iter().copied().chain(path.iter().map(|n| tokens[*n])).collect();
                assert!(
                    Some(&rows[node]) == reference_logits(&model, kv, &all).last(),
                    "{about}: node {node}"
                );
            }
            cache.tree().unwrap().commit(seq, &[0, 2, 5]).unwrap();
            let rows = run(&mut executor, &mut *cache, 3, &[row_input(seq, &[60, 61])]);
            let all = [&start[..], &[400, 20, 50, 60, 61]].concat();
            same(&format!("{about}, after the commit"), &rows, &reference_logits(&model, kv, &all)[33..]);
        }
    }
}

#[test]
fn redirected_writes_beside_scattered_blocks() {
    for (about, model, kv) in setups() {
        let mut executor = executor(&model, kv);
        let config = BlockConfig { block_size: 8, blocks: 32, dummy: true, ..BlockConfig::default() };
        let mut cache = Paged::new(config).unwrap();
        // The blocks of a closed sequence are reused in another order.
        let left = cache.open().unwrap();
        run(&mut executor, &mut cache, 1, &[row_input(left, &prompt(77, 8))]);
        cache.close(left).unwrap();
        let (all, seq, other) = (prompt(80, 6), cache.open().unwrap(), cache.open().unwrap());
        let wanted = reference_logits(&model, kv, &all);
        run(&mut executor, &mut cache, 2, &[row_input(seq, &all[..64]), row_input(other, &[3, 4])]);
        let mut again = RowInput { redirected: 5, ..row_input(seq, &all[59..]) };
        let rows = run(&mut executor, &mut cache, 3, &[again.clone(), row_input(other, &[5])]);
        same(&about, &rows[..21], &wanted[59..]);
        // Left padding blocks, as the rectangular policy adds them, change nothing.
        again = row_input(seq, &[1, 2]);
        let mut padded = step(&mut cache, 4, &[again]);
        padded.plan.rows[0].left_pad_blocks = 3;
        executor.execute(&mut padded, &[]).unwrap();
        let rows: Vec<Vec<f32>> =
            padded.output.logits.chunks(model.program().vocab).map(<[f32]>::to_vec).collect();
        same(&about, &rows, &reference_logits(&model, kv, &[&all[..], &[1, 2]].concat())[80..]);
    }
}

#[test]
fn dummy_steps_change_no_slot_and_yield_nothing() {
    for (about, model, kv) in setups() {
        let mut executor = executor(&model, kv);
        let mut cache = Contiguous::new(128);
        let (all, seq) = (prompt(60, 11), cache.open().unwrap());
        let wanted = reference_logits(&model, kv, &all);
        for (id, range) in [(1, 0..25), (2, 25..26), (3, 26..60)] {
            let mut dummy = Step::dummy(3, 0);
            executor.execute(&mut dummy, &[]).unwrap();
            assert_eq!((dummy.output.rows.len(), dummy.output.tokens.len()), (3, 0), "{about}");
            let rows = run(&mut executor, &mut cache, id, &[row_input(seq, &all[range.clone()])]);
            same(&about, &rows, &wanted[range]);
        }
    }
}

#[test]
fn cells_behind_a_sliding_window() {
    for (model, kv) in [(exact("mistral", 2), KvType::F32), (narrow("mistral", 2), KvType::Q8a)] {
        let window = model.program().layers[0].window;
        assert!(model.program().layers.iter().all(|layer| layer.window == window && window.is_some()));
        let mut executor = executor(&model, kv);
        // Far fewer cells than tokens.
        let mut cache = Cells::new(64, 2, window).unwrap();
        let (all, seq) = (prompt(140, 7), cache.open().unwrap());
        let wanted = reference_logits(&model, kv, &all);
        let mut at = 0;
        for (id, take) in (1..).zip([20, 1, 9, 1, 1, 24].into_iter().cycle()) {
            let end = all.len().min(at + take);
            same(
                "cells",
                &run(&mut executor, &mut cache, id, &[row_input(seq, &all[at..end])]),
                &wanted[at..end],
            );
            at = end;
            if at == all.len() {
                break;
            }
            // Frees what no later token sees.
            let behind = (at as u32 + 1).saturating_sub(window.unwrap());
            cache.sequences().unwrap().remove(seq, 0..behind).unwrap();
        }
    }
}

#[test]
fn rings_in_place_of_rows_behind_a_window() {
    for (about, model, kv) in setups() {
        let windows: Vec<u32> = model.program().layers.iter().filter_map(|layer| layer.window).collect();
        if windows.is_empty() {
            continue;
        }
        let limits = Limits { slots: 256, tokens: 64, rows: 1, kv, ring: Some(24) };
        let mut executor = CpuExecutor::new(Arc::clone(&model), limits).unwrap();
        let mut cache = Contiguous::with_rings(256, Rings::new(windows, 24).unwrap());
        let (mut all, seq) = (prompt(150, 9), cache.open().unwrap());
        let wanted = reference_logits(&model, kv, &all);
        let run = |executor: &mut CpuExecutor, cache: &mut Contiguous, id: u64, tokens: &[Token]| {
            let mut step = step(cache, id, &[row_input(seq, tokens)]);
            // K and V of a dummy row are not stored, not even in a slot that is in use.
            executor.execute(&mut Step::dummy(1, 0), &[]).unwrap();
            executor.execute(&mut step, &[]).unwrap();
            cache.retire(StepId(id)).unwrap();
            let logits = step.output.logits.chunks(executor.program().vocab);
            logits.map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        let mut at = 0;
        for (id, take) in (1..).zip([24, 1, 3, 24, 24, 1, 1, 17].into_iter().cycle()) {
            let end = all.len().min(at + take);
            same(&about, &run(&mut executor, &mut cache, id, &all[at..end]), &wanted[at..end]);
            at = end;
            if at == all.len() {
                break;
            }
        }
        // Rewinds as far as the rings still hold, and continues with other tokens.
        cache.rewind().unwrap().rewind_to(seq, 126).unwrap();
        all.truncate(126);
        all.extend([5, 6, 7]);
        same(
            &about,
            &run(&mut executor, &mut cache, 90, &all[126..]),
            &reference_logits(&model, kv, &all)[126..],
        );
        // A write longer than the rings were made for is rejected.
        let mut other = Contiguous::new(256);
        let seq = other.open().unwrap();
        let mut long = step(&mut other, 91, &[row_input(seq, &all[..25])]);
        assert!(matches!(executor.execute(&mut long, &[]), Err(StepError::Failed(_))), "{about}");
    }
}
