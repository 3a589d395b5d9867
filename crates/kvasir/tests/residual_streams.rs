//! A layer of GLM-5 with hyper-connections and sparse attention to selected pools of tokens, on
//! both backends.
//!
//! The test runs the layer alone, since its neighbors in the recorded checkpoint are recurrent. Its
//! input is a row of residual streams per token.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits, Precision, ThreadPool};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, ClaimRow, Contiguous, Lowering, Plan, SeqId, Span, StepId, Token};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_program::{Model, Op, Program, Tap};
use kvasir_testkit::{Random, paths};
use serde_json::Value as Json;
use std::sync::Arc;

/// The layer under test.
const LAYER: u32 = 1;
/// Residual streams after the layer.
const OUTPUT: Tap = Tap::IntoLayer(LAYER + 1);

fn checkpoint() -> Checkpoint {
    Checkpoint::open(&paths::model("glm5_next")).unwrap()
}

/// The program of one layer, followed by the ops after the last layer. `top_k` is the number of
/// tokens selected.
fn layer(top_k: usize) -> Program {
    let full = Model::build(&checkpoint().source()).unwrap().target;
    let [from, to] = [Tap::IntoLayer(LAYER), OUTPUT].map(|tap| full.tap(tap).unwrap());
    let last = full.tap(Tap::OutOfLastLayer).unwrap();
    let producer = |value| full.ops.iter().position(|op| op.out() == value).unwrap();
    let mut ops = vec![Op::Hidden { out: from }];
    ops.extend_from_slice(&full.ops[producer(from) + 1..=producer(to)]);
    ops.extend_from_slice(&full.ops[producer(last) + 1..]);
    let mut selections = 0;
    for op in &mut ops {
        match op {
            Op::Slice { x, .. } if *x == last => *x = to,
            Op::SelectKeys { top_k: selected, pool: Some(_), .. } => {
                (*selected, selections) = (top_k, selections + 1)
            }
            _ => {}
        }
    }
    assert_eq!(selections, 1);
    let hidden = full.value(from).width();
    Program { ops, states: Vec::new(), hidden, taps: vec![(OUTPUT, to)], ..full }
}

fn claimed_step(cache: &mut Contiguous, seq: SeqId, number: u64, tokens: &[Token]) -> Step {
    let id = StepId(number);
    cache.claim(id, &[ClaimRow::new(seq, tokens.len() as u32)]).unwrap();
    let mut step = Step { batch: Batch { step: id, ..Batch::default() }, ..Step::default() };
    cache.plan(id, &mut step.plan).unwrap();
    let cached = cache.len(seq).unwrap();
    step.batch.tokens.extend_from_slice(tokens);
    step.batch.rows.push(BatchRow {
        seq,
        tokens: Span::new(0, tokens.len()),
        cached,
        context_len: cached + tokens.len() as u32,
        sample_from: tokens.len() as u32,
        pool_row: PoolRow(0),
        ..BatchRow::default()
    });
    step
}

/// The layer's output on the CPU backend. `steps` are the numbers of tokens of the steps.
fn on_cpu(layer: &Program, ids: &[Token], streams: &[f32], steps: &[usize]) -> Vec<f32> {
    let threads = Arc::new(ThreadPool::new(2));
    let model = CpuModel::load(layer, Arc::new(checkpoint()), Precision::F32, threads).unwrap();
    let model = Arc::new(model.keeping(&[OUTPUT]).unwrap());
    let limits = Limits { slots: 256, tokens: 256, rows: 1, kv: KvType::F32, ring: None };
    let mut executor = CpuExecutor::new(model, limits).unwrap();
    executor.bind(PoolRow(0), SequenceSpec::default());
    let mut cache = Contiguous::new(256);
    let seq = cache.open().unwrap();
    let (mut rows, mut at) = (Vec::new(), 0);
    for (number, count) in (1..).zip(steps) {
        let mut step = claimed_step(&mut cache, seq, number, &ids[at..at + count]);
        executor.execute(&mut step, &streams[at * layer.hidden..(at + count) * layer.hidden]).unwrap();
        cache.retire(step.plan.step).unwrap();
        rows.extend_from_slice(executor.tap(OUTPUT).unwrap());
        at += count;
    }
    rows
}

/// The layer's output on the reference backend, in one step.
fn on_plain(layer: &Program, ids: &[Token], streams: &[f32]) -> Vec<f32> {
    let model = Model { target: layer.clone(), predictions: Vec::new() };
    let model = PlainModel::load(&model, &checkpoint()).unwrap();
    let limits = kvasir_plain::Limits { slots: 256, tokens: 256, rows: 1, states: None };
    let mut executor = PlainExecutor::new(&model, limits);
    executor.bind(PoolRow(0), SequenceSpec::default());
    let mut cache = Contiguous::new(256);
    let seq = cache.open().unwrap();
    let mut step = claimed_step(&mut cache, seq, 1, ids);
    let mut lowered = Plan::default();
    Lowering::default().lower(&step.plan, &mut lowered);
    step.plan = lowered;
    executor.pass(&step, Some(streams), &[OUTPUT]).unwrap().taps.remove(0).1
}

fn max_abs_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A tensor of `debug_p17.safetensors`.
fn recorded(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(paths::model("glm5_next").join("debug_p17.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Json = serde_json::from_slice(header).unwrap();
    let [start, end] = [0, 1].map(|n| header[name]["data_offsets"][n].as_u64().unwrap() as usize);
    data[start..end].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn a_layer_gives_the_recorded_streams() {
    let (layer, ids) = (layer(16), (0..17).collect::<Vec<Token>>());
    let (from, to) = (recorded("residual_into_layer.1"), recorded("residual_into_layer.2"));
    let rows = on_cpu(&layer, &ids, &from, &[17]);
    let error = max_abs_difference(&rows, &to);
    assert!(error < 1e-3, "{error}");
}

#[test]
fn selected_pools_are_the_same_on_both_backends() {
    let mut random = Random::new(7);
    let ids: Vec<Token> = (0..130).collect();
    let dense = layer(160);
    let streams: Vec<f32> = (0..ids.len() * dense.hidden).map(|_| random.unit() * 2.0 - 1.0).collect();
    let dense_rows = on_cpu(&dense, &ids, &streams, &[130]);
    for top_k in [4, 16, 64] {
        let layer = layer(top_k);
        let rows = on_cpu(&layer, &ids, &streams, &[130]);
        let error = max_abs_difference(&rows, &on_plain(&layer, &ids, &streams));
        assert!(error < 1e-3, "{top_k}: {error}");
        assert!(max_abs_difference(&rows, &dense_rows) > 1e-2, "{top_k}: all tokens were selected");
        let chunks = [1, 2, 3, 1, 1, 60, 30, 32];
        assert_eq!(on_cpu(&layer, &ids, &streams, &chunks), rows, "{top_k}");
    }
}
