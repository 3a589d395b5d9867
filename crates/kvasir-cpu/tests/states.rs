//! Recurrent models compute bit-identical logits however a sequence is divided into steps: with the
//! states of every cache kind, accepted and rejected drafts, and prefix hits. The executor rejects
//! invalid state sections.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits, Precision, ThreadPool};
use kvasir_exec::{Step, StepError};
use kvasir_formats::Checkpoint;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Lookup, SeqId, StateConfig, StepId, Token, build};
use kvasir_program::Model;
use kvasir_testkit::Random;
use kvasir_testkit::steps::{RowInput, check_last_rows, prompt, row_input, step};
use std::sync::Arc;

/// Models with every recurrence, with and without a mixture of experts.
const CASES: [&str; 10] = [
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "lfm2",
    "kimi_linear",
    "falcon_h1",
    "granitemoehybrid",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen4_exp",
];

const STATES: StateConfig = StateConfig { live: 4, checkpoints: 8, tail_rows: 4, interval: 16 };

fn model(case: &str, precision: Precision) -> Arc<CpuModel> {
    let checkpoint = Checkpoint::open(&kvasir_testkit::paths::model(case)).unwrap();
    let program = Model::build(&checkpoint.source()).unwrap().target;
    let threads = Arc::new(ThreadPool::new(2));
    Arc::new(CpuModel::load(&program, Arc::new(checkpoint), precision, threads).unwrap())
}

fn executor(model: &Arc<CpuModel>, states: Option<StateConfig>) -> CpuExecutor {
    let limits = Limits { slots: 600, tokens: 256, rows: 4, kv: KvType::F32, ring: None };
    CpuExecutor::new(Arc::clone(model), limits).unwrap().with_states(states).unwrap()
}

fn cache(kind: CacheKind) -> Box<dyn Cache> {
    build(kind, &CacheConfig { states: Some(STATES), ..CacheConfig::new(512) }).unwrap()
}

/// Runs a step; returns each token's logits.
fn run(executor: &mut CpuExecutor, cache: &mut dyn Cache, id: u64, inputs: &[RowInput]) -> Vec<Vec<f32>> {
    let mut step = step(cache, id, inputs);
    executor.execute(&mut step, &[]).unwrap();
    cache.retire(StepId(id)).unwrap();
    step.output.logits.chunks(executor.program().vocab).map(<[f32]>::to_vec).collect()
}

/// Compares the logits of the last tokens with those of the whole sequence in one step.
fn check_logits(model: &Arc<CpuModel>, tokens: &[Token], rows: &[Vec<f32>], context: &str) {
    let mut cache = cache(CacheKind::Contiguous);
    let seq = cache.open().unwrap();
    let expected = run(&mut executor(model, Some(STATES)), &mut *cache, 1, &[row_input(seq, tokens)]);
    check_last_rows(rows, &expected, context);
}

#[test]
fn any_division_into_steps_gives_identical_logits_on_every_cache() {
    for (n, case) in CASES.iter().enumerate() {
        let model = model(case, if n % 2 == 0 { Precision::Auto } else { Precision::F32 });
        for &kind in CacheKind::ALL {
            let mut random = Random::new(n as u64 * 10 + kind as u64);
            let (mut executor, mut cache) = (executor(&model, Some(STATES)), cache(kind));
            let count = if kind.holds_one_sequence() { 1 } else { 3 };
            let seqs: Vec<SeqId> = (0..count).map(|_| cache.open().unwrap()).collect();
            let mut tokens: Vec<Vec<Token>> = vec![Vec::new(); count];
            for id in 1..=8 {
                let mut inputs = Vec::new();
                for (seq, tokens) in seqs.iter().zip(&tokens) {
                    let fed: Vec<Token> = (0..random.between(1, 9)).map(|_| random.between(0, 499)).collect();
                    let max_drafts = fed.len() as u32 - u32::from(tokens.is_empty());
                    let drafts = random.between(0, max_drafts.min(STATES.tail_rows));
                    inputs.push(RowInput { drafts, ..row_input(*seq, &fed) });
                }
                let mut rows = run(&mut executor, &mut *cache, id, &inputs).into_iter();
                for ((seq, tokens), input) in seqs.iter().zip(&mut tokens).zip(&inputs) {
                    tokens.extend(&input.tokens);
                    let own: Vec<_> = rows.by_ref().take(input.tokens.len()).collect();
                    check_logits(&model, tokens, &own, &format!("{case} {kind} step {id}"));
                    let rejected = random.between(0, input.drafts);
                    tokens.truncate(tokens.len() - rejected as usize);
                    if rejected > 0 {
                        cache.rewind().unwrap().rewind_to(*seq, tokens.len() as u32).unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn a_prefix_hit_continues_from_a_checkpoint() {
    for case in CASES {
        let model = model(case, Precision::Auto);
        let (mut executor, mut cache) = (executor(&model, Some(STATES)), cache(CacheKind::Paged));
        let first = prompt(45, 3);
        let seq = cache.open().unwrap();
        run(&mut executor, &mut *cache, 1, &[row_input(seq, &first)]);
        cache.prefix().unwrap().publish(seq, &first, 45).unwrap();
        cache.close(seq).unwrap();
        let second = [&first[..39], &prompt(10, 4)].concat();
        let seq = cache.open().unwrap();
        let hit = cache.prefix().unwrap().attach(seq, &second, 0, u32::MAX, Lookup::default()).unwrap();
        assert_eq!(hit.tokens, 32, "{case}");
        let rows = run(&mut executor, &mut *cache, 2, &[row_input(seq, &second[32..])]);
        check_logits(&model, &second, &rows, case);
    }
}

#[test]
fn the_executor_rejects_an_invalid_state_section_and_stays_usable() {
    let model = model("qwen3_5", Precision::F32);
    let (mut executed, mut cache) = (executor(&model, Some(STATES)), cache(CacheKind::Cells));
    let seqs = [cache.open().unwrap(), cache.open().unwrap()];
    let inputs = seqs.map(|seq| row_input(seq, &[1, 2, 3, 4, 5, 6, 7]));
    let mut fails = |id: u64, change: &dyn Fn(&mut Step), what: &str| {
        let mut wrong = step(&mut *cache, id, &inputs);
        cache.cancel(StepId(id)).unwrap();
        change(&mut wrong);
        let error = executed.execute(&mut wrong, &[]).unwrap_err();
        assert!(matches!(&error, StepError::Failed(why) if why.contains(what)), "{error}");
    };
    fails(1, &|step| step.plan.states.rows[1].to = step.plan.states.rows[0].to, "twice");
    fails(2, &|step| step.plan.states.rows[0].to = STATES.slots(), "the pool has 12 slots");
    fails(3, &|step| step.plan.states.reset(), "no state row");
    fails(4, &|step| step.plan.states.rows[0].commit = 6, "commits 6 of 7 queries");
    // Dummy steps have no states and change none.
    executed.execute(&mut Step::dummy(3, 0), &[]).unwrap();
    let rows = run(&mut executed, &mut *cache, 5, &inputs);
    check_logits(&model, &inputs[0].tokens, &rows[..7], "after invalid steps");
    let error = executor(&model, None).execute(&mut step(&mut *cache, 6, &inputs), &[]).unwrap_err();
    assert!(error.to_string().contains("no pool of recurrent states"), "{error}");
}
