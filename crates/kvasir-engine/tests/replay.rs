//! Edits of live requests: parameter changes while running, and sequences whose row is taken out of
//! a step.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{OutputRow, RowKind, Step, StepKind};
use kvasir_kv::{Paged, Span, Token, blocks::BlockConfig};
use kvasir_sim::Toy;

fn core(order: Order) -> Core {
    let cache = Paged::new(BlockConfig { block_size: 4, blocks: 8, ..BlockConfig::default() }).unwrap();
    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
    Core::new(Limits::default(), order, Box::new(policy), Box::new(cache))
}

fn request(tag: u64, prompt: &[Token]) -> Request {
    let params = Params { max_tokens: 9, eos: vec![Toy::EOS], ..Params::default() };
    Request { tag, prompt: prompt.to_vec(), params }
}

/// Completes a step in which every row yields `token`; returns the events as (tag, tokens, finish).
fn end(core: &mut Core, mut step: Box<Step>, token: Token) -> Vec<(u64, Vec<Token>, Option<Finish>)> {
    for i in 0..step.batch.rows.len() {
        step.output.tokens.push(token);
        step.output.rows.push(OutputRow { tokens: Span::new(i, 1) });
    }
    core.postprocess(&step, &Ok(()), 0);
    let received =
        core.outbox().iter().map(|one| (one.event.tag, one.tokens.to_vec(), one.event.finish)).collect();
    core.outbox().clear();
    core.recycle(step);
    core.check_invariants().unwrap();
    received
}

#[test]
fn stop_conditions_change_while_running_max_tokens_cannot_grow() {
    for order in [Order::Fcfs, Order::Fair] {
        let mut core = core(order);
        let id = core.add(request(1, &[5, 6, 7]), 0).unwrap();
        let step = core.schedule(0).unwrap();
        assert_eq!(core.change_params(id, |params| params.ignore_eos = true), Ok(true));
        assert_eq!(end(&mut core, step, Toy::EOS), [(1, vec![Toy::EOS], None)]);
        let raised = core.change_params(id, |params| params.max_tokens = 10);
        assert_eq!(raised, Err(Refusal::BadParameter(Parameter::MaxTokens)));
        assert!(core.change_params(id, |params| params.sampling.temperature = -1.0).is_err());
        core.change_params(id, |params| (params.max_tokens, params.sampling.temperature) = (2, 0.5)).unwrap();
        let step = core.schedule(0).unwrap();
        assert_eq!(step.batch.rows[0].sampling.temperature, 0.5);
        assert_eq!(end(&mut core, step, 9), [(1, vec![9], Some(Finish::MaxTokens))]);
        assert_eq!(core.change_params(id, |_| ()), Ok(false));
        let waits = core.add(request(2, &[5]), 0).unwrap();
        assert_eq!(
            core.change_params(waits, |params| params.max_tokens = 99),
            Ok(true),
            "nothing was promised to it"
        );
    }
}

#[test]
fn changed_sampling_applies_from_the_next_step() {
    let mut core = core(Order::Fcfs);
    let id = core.add(request(1, &[5, 6, 7]), 0).unwrap();
    for temperature in [0.0, 0.25, 0.5, 0.75] {
        core.change_params(id, |params| params.sampling.temperature = temperature).unwrap();
        // In the second step the batch row is reused from the first.
        for _ in 0..2 {
            let step = core.schedule(0).unwrap();
            assert_eq!(step.batch.rows[0].sampling.temperature, temperature);
            end(&mut core, step, 9);
        }
    }
}

#[test]
fn discarded_row_continues_from_its_newest_token() {
    let mut core = core(Order::Fcfs);
    // The first prompt fills its block, which is then published to the prefix cache.
    let ids = [[5, 6, 7, 8], [9, 10, 11, 12]].map(|prompt| core.add(request(0, &prompt), 0).unwrap());
    let mut step = core.schedule(0).unwrap();
    core.retire(&step);
    assert!(core.remove_row(&mut step, ids[0], true) && !core.remove_row(&mut step, ids[0], true));
    assert_eq!(end(&mut core, step, 30), [(0, vec![30], None)]);
    let step = core.schedule(0).unwrap();
    assert_eq!(step.batch.kind, StepKind::Decode);
    let fed: Vec<_> =
        step.batch.rows.iter().map(|row| (row.kind, &step.batch.tokens[row.tokens.range()])).collect();
    assert_eq!(fed, [(RowKind::Decode, &[8][..]), (RowKind::Decode, &[30][..])]);
    assert_eq!(end(&mut core, step, 31), [(0, vec![31], None), (0, vec![31], None)]);
    // A request preempted in the meantime is recomputed at once; no token is awaited.
    let mut step = core.schedule(0).unwrap();
    assert!(core.remove_row(&mut step, ids[1], true) && core.preempt(ids[1]));
    end(&mut core, step, 32);
    let step = core.schedule(0).unwrap();
    assert_eq!(&step.batch.tokens[..], [30, 31], "found but for the tail");
    end(&mut core, step, Toy::EOS);
}
