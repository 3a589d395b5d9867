//! Tensor parallelism: ranks with a part of the model each compute the same as one rank with all,
//! on both backends.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Precision, ThreadPool};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step, ThreadRank};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, ClaimRow, Contiguous, Lowering, Span, StepId, Token};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_program::{Collective, Holds, Matrix, Model, Op, Program, ValueId};
use std::path::Path;
use std::sync::Arc;

/// A rank's program: heads, MLP columns and vocabulary are sharded, with a collective where a row
/// continues.
fn part(whole: &Program, rank: usize, count: usize) -> Program {
    let mut program = whole.clone();
    let name = |m: &Matrix| &whole.weights[m.weight.0 as usize].name;
    let narrow = |values: &mut Vec<kvasir_program::Value>, id: ValueId| {
        let width = values[id.0 as usize].width() / count;
        values[id.0 as usize].holds = Holds::Numbers(width);
    };
    let mut ops = Vec::new();
    let mut divided: Vec<ValueId> = Vec::new();
    for op in &whole.ops {
        let mut op = op.clone();
        let takes = op.inputs().any(|v| divided.contains(&v));
        let joined = |values: &mut Vec<kvasir_program::Value>, of: ValueId| {
            values.push(values[of.0 as usize]);
            ValueId(values.len() as u32 - 1)
        };
        match &mut op {
            Op::Linear { matrix, out, .. } if takes => {
                matrix.inputs /= count;
                matrix.offset += rank * matrix.inputs * matrix.input_stride;
                if rank > 0 {
                    matrix.bias = None;
                }
                let whole = *out;
                *out = joined(&mut program.values, whole);
                let collect = Op::Collect { x: *out, how: Collective::Sum, out: whole };
                ops.extend([op, collect]);
                continue;
            }
            Op::Linear { matrix, out, .. } | Op::Head { matrix, out, .. } => {
                assert!(matrix.outputs.is_multiple_of(count), "{}", name(matrix));
                matrix.outputs /= count;
                matrix.offset += rank * matrix.outputs * matrix.output_stride;
                if let Some(bias) = &mut matrix.bias {
                    bias.offset += rank * matrix.outputs * bias.stride;
                }
                divided.push(*out);
                if matches!(op, Op::Head { .. }) {
                    let Op::Head { out, .. } = &mut op else { continue };
                    let whole = *out;
                    *out = joined(&mut program.values, whole);
                    narrow(&mut program.values, *out);
                    let collect = Op::Collect { x: *out, how: Collective::Join, out: whole };
                    ops.extend([op, collect]);
                    continue;
                }
            }
            Op::Norm { groups, .. } | Op::Rotary { groups, .. } if takes => *groups /= count,
            _ => {}
        }
        if takes {
            divided.push(op.out());
        }
        if divided.contains(&op.out()) {
            narrow(&mut program.values, op.out());
        }
        ops.push(op);
    }
    program.ops = ops;
    program.layers.iter_mut().for_each(|layer| layer.kv_heads /= count);
    program
}

/// Logits of every prompt token, in two prefill steps.
fn logits(mut executor: impl Executor, prompt: &[Token]) -> Vec<f32> {
    let mut cache = Contiguous::new(256);
    let seq = cache.open().unwrap();
    let spec = SequenceSpec { prompt: prompt.to_vec(), final_len: 256, ..SequenceSpec::default() };
    executor.bind(PoolRow(0), spec);
    let mut all = Vec::new();
    for (id, tokens) in (1..).map(StepId).zip([&prompt[..30], &prompt[30..]]) {
        cache.claim(id, &[ClaimRow::new(seq, tokens.len() as u32)]).unwrap();
        let mut step = Box::new(Step::default());
        cache.plan(id, &mut step.plan).unwrap();
        step.lower(&executor.abilities(), &mut Lowering::default()).unwrap();
        let row =
            BatchRow { seq, tokens: Span::new(0, tokens.len()), pool_row: PoolRow(0), ..BatchRow::default() };
        step.batch =
            Batch { step: id, tokens: tokens.to_vec(), rows: vec![row], logits: true, ..Batch::default() };
        let pending = executor.submit(step).unwrap();
        let (step, result) = executor.wait(pending);
        result.unwrap();
        cache.retire(id).unwrap();
        all.extend(step.output.logits);
    }
    all
}

fn cpu(model: &Model, program: &Program, dir: &Path) -> CpuExecutor {
    let checkpoint = Arc::new(Checkpoint::open(dir).unwrap());
    assert_eq!(model.target.vocab, program.vocab);
    let model = CpuModel::load(program, checkpoint, Precision::F32, Arc::new(ThreadPool::new(1))).unwrap();
    let limits = kvasir_cpu::Limits { slots: 256, tokens: 64, rows: 1, kv: KvType::F32, ring: None };
    CpuExecutor::new(Arc::new(model), limits).unwrap()
}

fn plain(model: &Model, program: &Program, dir: &Path) -> PlainExecutor {
    let model = Model { target: program.clone(), ..model.clone() };
    let model = PlainModel::load(&model, &Checkpoint::open(dir).unwrap()).unwrap();
    PlainExecutor::new(&model, kvasir_plain::Limits { slots: 256, tokens: 64, rows: 1 })
}

#[test]
fn tensor_parallel_ranks_compute_the_same_bits() {
    for case in ["qwen3", "llama", "llama_linear_bias", "qwen2"] {
        let dir = kvasir_testkit::paths::model(case);
        let model = Model::build(&Checkpoint::open(&dir).unwrap().source()).unwrap();
        let prompt: Vec<Token> = (0..50).map(|i| (i * 37 + 5) % model.target.vocab as Token).collect();
        let near = |a: &[f32], b: &[f32]| {
            assert_eq!(a.len(), b.len(), "{case}");
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(worst < 1e-3, "{case}: {worst}");
        };
        let parts = || (0..2).map(|rank| part(&model.target, rank, 2)).zip(ThreadRank::all(2));
        let together = |run: &(dyn Fn(Program, ThreadRank) -> Vec<f32> + Sync)| -> Vec<Vec<f32>> {
            std::thread::scope(|s| {
                let running: Vec<_> =
                    parts().map(|(program, rank)| s.spawn(move || run(program, rank))).collect();
                running.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        };
        let alone = logits(cpu(&model, &model.target, &dir), &prompt);
        let all =
            together(&|program, rank| logits(cpu(&model, &program, &dir).among(rank).unwrap(), &prompt));
        assert_eq!(all[0], all[1], "{case}: all ranks have the same bits");
        near(&all[0], &alone);
        let all =
            together(&|program, rank| logits(plain(&model, &program, &dir).among(rank).unwrap(), &prompt));
        assert_eq!(all[0], all[1], "{case}: all ranks have the same bits");
        near(&all[0], &alone);
    }
}

#[test]
fn parts_run_among_as_many_ranks_as_there_are_parts() {
    let dir = kvasir_testkit::paths::model("qwen3");
    let model = Model::build(&Checkpoint::open(&dir).unwrap().source()).unwrap();
    let program = part(&model.target, 0, 2);
    assert_eq!((program.ranks(), model.target.ranks()), (Some(2), None));
    let three = || ThreadRank::all(3).remove(0);
    assert!(cpu(&model, &program, &dir).among(three()).err().unwrap().contains("2 ranks"));
    assert!(plain(&model, &program, &dir).among(three()).err().unwrap().contains("2 ranks"));
    // Round trip through text and JSON.
    assert!(program.to_string().contains("collect") && program.to_string().contains("Join"));
    let json = serde_json::to_string(&program).unwrap();
    assert_eq!(serde_json::from_str::<Program>(&json).unwrap(), program);
}
