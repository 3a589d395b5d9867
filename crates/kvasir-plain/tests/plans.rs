//! A sequence gets bit-identical logits whatever cache holds it and whatever else is in the batch.
//!
//! Covers ragged chunked prefill, forks, frozen prefixes, token trees, redirected writes, refused
//! steps and penalties.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::steps::{reference_logits, run, step};
use common::{limits, load};
use kvasir_exec::{Executor, IN_FLIGHT, PoolRow, RowKind, SequenceSpec, Step, StepError, StepKind};
use kvasir_kv::{
    Cache, Cells, Contiguous, Paged, PoolId, SeqId, StepId, Token, TreeCache, blocks::BlockConfig,
};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_sample::Sampling;
use kvasir_testkit::steps::{RowInput, prompt, row_input};

const CASES: [&str; 5] = ["deepseek_v32", "deepseek_v4", "gpt_oss", "qwen3_yarn_swa", "gemma3"];

fn model(case: &str) -> PlainModel {
    load(&kvasir_testkit::paths::model(case))
}

#[test]
fn a_batch_of_cells_gives_every_sequence_its_own_bits() {
    for case in CASES {
        let model = model(case);
        let mut executor = PlainExecutor::new(&model, limits());
        let mut cache = Cells::new(256, 8, None).unwrap();
        let seqs: Vec<SeqId> = (0..3).map(|_| cache.open().unwrap()).collect();
        let prompts = [prompt(41, 1), prompt(7, 2), prompt(29, 3)];
        let wanted: Vec<_> = prompts.iter().map(|p| reference_logits(&model, p)).collect();
        // Chunked prefill of all three sequences, in ragged steps.
        let mut at = [0; 3];
        for (id, take) in (1..).zip([[9, 1, 4], [1, 1, 1], [16, 3, 2], [15, 2, 22]]) {
            let inputs: Vec<RowInput> =
                (0..3).map(|i| row_input(seqs[i], &prompts[i][at[i]..at[i] + take[i]])).collect();
            let mut rows = run(&mut executor, &mut cache, id, &inputs).into_iter();
            for i in 0..3 {
                let theirs: Vec<_> = rows.by_ref().take(take[i]).collect();
                assert_eq!(theirs, wanted[i][at[i]..at[i] + take[i]], "{case} {i} {}", at[i]);
                at[i] += take[i];
            }
        }
        // After a fork, both the copy and the original continue as they would alone.
        let fork = cache.sequences().unwrap().fork(seqs[0], 1).unwrap()[0];
        let (one, two) = ([5, 6], [7, 8, 9]);
        let rows = run(&mut executor, &mut cache, 9, &[row_input(seqs[0], &one), row_input(fork, &two)]);
        let all = [&prompts[0][..], &one].concat();
        assert_eq!(rows[1], reference_logits(&model, &all)[42], "{case}");
        let all = [&prompts[0][..], &two].concat();
        assert_eq!(rows[4], reference_logits(&model, &all)[43], "{case}");
    }
}

#[test]
fn a_frozen_prefix_reads_like_own_rows() {
    for case in CASES {
        let model = model(case);
        let all = prompt(50, 4);
        let wanted = reference_logits(&model, &all);
        let mut first = PlainExecutor::new(&model, limits());
        let mut cache = Contiguous::new(64);
        let seq = cache.open().unwrap();
        run(&mut first, &mut cache, 1, &[row_input(seq, &all[..33])]);
        let prefix = cache.freeze(PoolId(7)).unwrap();
        let mut second = PlainExecutor::new(&model, limits());
        let mut fork = prefix.fork(64).unwrap();
        let seq = fork.open().unwrap();
        let unattached = step(&mut fork, 1, &[row_input(seq, &all[33..40])]);
        assert!(matches!(second.pass(&unattached, None, &[]), Err(StepError::Failed(_))));
        fork.cancel(StepId(1)).unwrap();
        second.attach(PoolId(7), first.into_pool());
        let rows = run(&mut second, &mut fork, 2, &[row_input(seq, &all[33..40])]);
        assert_eq!(rows, wanted[33..40], "{case}");
        assert_eq!(run(&mut second, &mut fork, 3, &[row_input(seq, &all[40..])]), wanted[40..], "{case}");
    }
}

#[test]
fn a_draft_tree_is_verified_in_one_step() {
    for case in CASES {
        let model = model(case);
        let mut executor = PlainExecutor::new(&model, limits());
        let mut cache = TreeCache::new(128);
        let seq = cache.open().unwrap();
        let start = prompt(30, 5);
        run(&mut executor, &mut cache, 1, &[row_input(seq, &start)]);
        // Node 0 is the newest token; 1 and 2 follow it, 3 follows 1, 4 and 5 follow 2.
        let (tokens, parents) = ([400, 10, 20, 30, 40, 50], [0, 0, 1, 2, 2]);
        let mut frontier = vec![-1];
        frontier.extend(parents);
        cache.tree().unwrap().propose(seq, &frontier).unwrap();
        let drafted = RowInput { parents: parents.to_vec(), ..row_input(seq, &tokens) };
        let rows = run(&mut executor, &mut cache, 2, &[drafted]);
        let paths: [&[usize]; 6] = [&[0], &[0, 1], &[0, 2], &[0, 1, 3], &[0, 2, 4], &[0, 2, 5]];
        for (node, path) in paths.iter().enumerate() {
            let tail: Vec<Token> = path.iter().map(|n| tokens[*n]).collect();
            let all = [&start[..], &tail].concat();
            assert_eq!(&rows[node], reference_logits(&model, &all).last().unwrap(), "{case} node {node}");
        }
        cache.tree().unwrap().commit(seq, &[0, 2, 5]).unwrap();
        let rows = run(&mut executor, &mut cache, 3, &[row_input(seq, &[60, 61])]);
        let all = [&start[..], &[400, 20, 50, 60, 61]].concat();
        assert_eq!(rows, reference_logits(&model, &all)[33..], "{case} after the commit");
    }
}

#[test]
fn redirected_tokens_are_computed_again_and_change_nothing() {
    for case in CASES {
        let model = model(case);
        let mut executor = PlainExecutor::new(&model, limits());
        let config = BlockConfig { block_size: 8, blocks: 16, dummy: true, ..BlockConfig::default() };
        let mut cache = Paged::new(config).unwrap();
        let (all, seq) = (prompt(48, 6), cache.open().unwrap());
        let wanted = reference_logits(&model, &all);
        run(&mut executor, &mut cache, 1, &[row_input(seq, &all[..32])]);
        let again = RowInput { redirected: 5, ..row_input(seq, &all[27..48]) };
        assert_eq!(run(&mut executor, &mut cache, 2, &[again]), wanted[27..], "{case}");
    }
}

#[test]
fn invalid_steps_fail_and_the_next_runs() {
    let model = model("qwen3");
    let mut executor = PlainExecutor::new(&model, limits());
    let mut cache = Contiguous::new(64);
    let seq = cache.open().unwrap();
    let mut id = 0;
    let mut fails = |change: &dyn Fn(&mut Step), what: &str| {
        id += 1;
        let mut bad = step(&mut cache, id, &[row_input(seq, &[1, 2, 3])]);
        cache.cancel(StepId(id)).unwrap();
        change(&mut bad);
        let pending = executor.submit(Box::new(bad)).unwrap();
        let error = executor.wait(pending).1.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    fails(&|s| s.batch.tokens[1] = 512, "512");
    fails(&|s| s.batch.tokens[0] = IN_FLIGHT, "in flight");
    fails(&|s| s.plan.write_slots[2] = 512, "beyond");
    fails(&|s| s.plan.read_bound = 513, "beyond");
    fails(&|s| s.batch.rows[0].pool_row = PoolRow(4), "row 4");
    fails(&|s| s.batch.rows[0].tokens.len = 2, "belong together");
    fails(&|s| s.plan.segments[0].pool = PoolId(3), "pool 3");
    fails(&|s| s.batch.kind = StepKind::Dummy, "dummy");
    fails(&|s| s.batch.rows[0].kind = RowKind::Dummy, "dummy");
    let rows = run(&mut executor, &mut cache, 21, &[row_input(seq, &[1, 2, 3])]);
    assert_eq!(rows, reference_logits(&model, &[1, 2, 3]));
}

#[test]
fn dummy_steps_write_the_dummy_slot_alone() {
    for case in CASES {
        let model = model(case);
        let mut executor = PlainExecutor::new(&model, limits());
        let mut cache = Contiguous::new(64);
        let (all, seq) = (prompt(20, 8), cache.open().unwrap());
        run(&mut executor, &mut cache, 1, &[row_input(seq, &all[..10])]);
        let mut dummy = Step::dummy(3, cache.shape().dummy_slot);
        common::lower(&mut dummy);
        let pending = executor.submit(Box::new(dummy)).unwrap();
        let (dummy, result) = executor.wait(pending);
        assert_eq!((result, dummy.output.tokens.len(), dummy.output.rows.len()), (Ok(()), 0, 3));
        let rows = run(&mut executor, &mut cache, 2, &[row_input(seq, &all[10..])]);
        assert_eq!(rows, reference_logits(&model, &all)[10..], "{case}");
    }
}

#[test]
fn penalties_count_fed_and_accepted_tokens() {
    let model = model("qwen3");
    let start = prompt(12, 7);
    let sampling = Sampling { repetition_penalty: 1.3, frequency_penalty: 0.7, ..Sampling::default() };
    // Token by token, without drafts.
    let plain = |executor: &mut PlainExecutor| {
        let mut cache = TreeCache::new(64);
        let seq = cache.open().unwrap();
        let mut tokens: Vec<Token> = Vec::new();
        for id in 1..=10 {
            let fed = if id == 1 { start.clone() } else { vec![IN_FLIGHT] };
            let mut one = step(&mut cache, id, &[row_input(seq, &fed)]);
            one.batch.rows[0].sampling = sampling;
            one.batch.rows[0].sample_from = fed.len() as u32 - 1;
            let pending = executor.submit(Box::new(one)).unwrap();
            tokens.extend(&executor.wait(pending).0.output.tokens);
            cache.retire(StepId(id)).unwrap();
        }
        tokens
    };
    let bound = || {
        let mut executor = PlainExecutor::new(&model, limits());
        executor.bind(PoolRow(0), SequenceSpec { prompt: start.clone(), ..SequenceSpec::default() });
        executor
    };
    let wanted = plain(&mut bound());
    // Again with draft chains, of which two are accepted and the third is rejected, then with the
    // newest token in flight.
    let mut executor = bound();
    let mut cache = Contiguous::new(64);
    let seq = cache.open().unwrap();
    let mut submit = |cache: &mut Contiguous, id: u64, fed: &[Token], drafts: u32, from: usize| {
        let mut one = step(cache, id, &[RowInput { drafts, ..row_input(seq, fed) }]);
        one.batch.rows[0].sampling = sampling;
        one.batch.rows[0].sample_from = from as u32;
        let pending = executor.submit(Box::new(one)).unwrap();
        let tokens = executor.wait(pending).0.output.tokens;
        cache.retire(StepId(id)).unwrap();
        tokens
    };
    assert_eq!(submit(&mut cache, 1, &start, 0, start.len() - 1), wanted[..1]);
    let wrong = (wanted[3] + 1) % 500;
    let drafts = [IN_FLIGHT, wanted[1], wanted[2], wrong];
    assert_eq!(submit(&mut cache, 2, &drafts, 3, 0)[..3], wanted[1..4]);
    cache.rewind().unwrap().rewind_to(seq, start.len() as u32 + 3).unwrap();
    assert_eq!(submit(&mut cache, 3, &[IN_FLIGHT], 0, 0), wanted[4..5]);
    assert_eq!(submit(&mut cache, 4, &[wanted[4]], 0, 0), wanted[5..6]);
}
