//! Request timings: arrival, admission, TTFT, TPOT and end, across preemption and speculative
//! decoding.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{OutputRow, Step};
use kvasir_kv::{Paged, Span, Token, blocks::BlockConfig};

fn core(drafts: u32) -> Core {
    let cache = Paged::new(BlockConfig { block_size: 4, blocks: 8, ..BlockConfig::default() }).unwrap();
    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
    let mut core = Core::new(Limits::default(), Order::Fcfs, Box::new(policy), Box::new(cache));
    core.set_spec_steps(drafts);
    core
}

fn request(max_tokens: u32) -> Request {
    Request { tag: 0, prompt: vec![5, 6, 7], params: Params { max_tokens, ..Params::default() } }
}

/// Schedules a step at `scheduled` and postprocesses its tokens at `taken`.
fn step(core: &mut Core, scheduled: Nanos, tokens: &[Token], taken: Nanos) {
    let mut step: Box<Step> = core.schedule(scheduled).unwrap();
    step.output.tokens.extend(tokens);
    step.output.rows.push(OutputRow { tokens: Span::new(0, tokens.len()) });
    core.postprocess(&step, &Ok(()), taken);
    core.recycle(step);
}

#[test]
fn summary_has_all_timestamps_across_a_preemption() {
    let mut core = core(0);
    let id = core.add(request(3), 100).unwrap();
    step(&mut core, 110, &[8], 130);
    step(&mut core, 131, &[9], 150);
    // Preemption and recomputation change neither the admission time nor TTFT.
    assert!(core.preempt(id));
    step(&mut core, 160, &[10], 190);
    let [summary] = &core.outbox().ended[..] else { panic!("one request has ended") };
    let timings = Timings {
        arrived: 100,
        admitted: Some(110),
        first_token: Some(130),
        last_token: Some(190),
        finished: Some(190),
    };
    assert_eq!(summary.timings, timings);
    assert_eq!((summary.ttft(), summary.decode_time(), summary.tpot()), (Some(30), Some(60), Some(30)));
    assert_eq!((summary.preemptions, summary.outputs), (1, 3));
}

#[test]
fn tpot_counts_accepted_drafts_and_is_none_for_one_token() {
    let mut core = core(1);
    let id = core.add(request(3), 100).unwrap();
    step(&mut core, 100, &[8], 130);
    core.set_drafts(id, &Proposal { tokens: vec![9], ..Proposal::default() });
    step(&mut core, 130, &[9, 10], 150);
    core.add(request(1), 200).unwrap();
    step(&mut core, 200, &[8], 240);
    let reported: Vec<_> = core.outbox().ended.iter().map(|one| (one.ttft(), one.tpot())).collect();
    assert_eq!(reported, [(Some(30), Some(10)), (Some(40), None)]);
}

#[test]
fn request_without_output_has_no_first_token() {
    let mut core = core(0);
    let id = core.add(request(3), 100).unwrap();
    assert!(core.abort(id, 140));
    let summary = &core.outbox().ended[0];
    assert_eq!((summary.ttft(), summary.tpot(), summary.timings.finished), (None, None, Some(140)));
}
