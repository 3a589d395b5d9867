//! Request lifecycle in the scheduler, step by step: events, admission, preemption, cancellation,
//! drafts, siblings, queue orders and the serving loop.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{
    Abilities, Executor, OutputRow, PoolRow, Refused, RowKind, SequenceSpec, Step, StepError, StepKind,
};
use kvasir_kv::{
    Cache, CacheError, CacheKind, Capability, Cells, Contiguous, Paged, Radix, Span, StepId, Token,
    blocks::BlockConfig,
};
use kvasir_sim::Toy;
use kvasir_testkit::complete::{complete, complete_all};
use std::sync::{Arc, Mutex, mpsc::channel};

fn paged(blocks: u32) -> Box<dyn Cache> {
    Box::new(Paged::new(BlockConfig { block_size: 4, blocks, ..BlockConfig::default() }).unwrap())
}

fn core(cache: Box<dyn Cache>) -> Core {
    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
    Core::new(Limits::default(), Order::Fcfs, Box::new(policy), cache)
}

fn request(prompt: &[Token], max_tokens: u32) -> Request {
    let params = Params { max_tokens, eos: vec![Toy::EOS], ..Params::default() };
    Request { tag: 7, prompt: prompt.to_vec(), params }
}

/// Fills the step's output: every sampled row yields `token`.
fn answer(step: &mut Step, token: Token) {
    for row in &step.batch.rows {
        let start = step.output.tokens.len();
        let count = (row.tokens.len - row.sample_from) as usize;
        step.output.tokens.extend(std::iter::repeat_n(token, count));
        step.output.rows.push(OutputRow { tokens: Span::new(start, count) });
    }
}

fn turn(core: &mut Core, token: Token) -> bool {
    let Some(mut step) = core.schedule(0) else { return false };
    core.take_binds().for_each(drop);
    answer(&mut step, token);
    core.postprocess(&step, &Ok(()), 0);
    core.recycle(step);
    true
}

#[test]
fn events_carry_tokens_and_a_final_finish_reason() {
    let mut core = core(paged(8));
    core.add(request(&[5, 6, 7], 3), 0).unwrap();
    turn(&mut core, 30);
    turn(&mut core, 31);
    turn(&mut core, 2);
    let outbox = core.outbox();
    let received: Vec<_> =
        outbox.iter().map(|one| (one.event.first, one.tokens.to_vec(), one.event.finish)).collect();
    assert_eq!(received, [(0, vec![30], None), (1, vec![31], None), (2, vec![2], Some(Finish::Eos))]);
    assert_eq!((outbox.ended[0].tag, outbox.ended[0].outputs), (7, 3));
    assert!(core.is_idle());
}

#[test]
fn stateful_requests_wait_for_a_state_slot() {
    let limits = Limits { state_slots: Some(1), ..Limits::default() };
    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
    let mut core = Core::new(limits, Order::Fcfs, Box::new(policy), paged(16));
    let with = |stateful| {
        let mut request = request(&[5, 6, 7], 2);
        request.params.stateful = stateful;
        request
    };
    let [plain, first, second] = [false, true, true].map(|stateful| core.add(with(stateful), 0).unwrap());
    let step = core.schedule(0).unwrap();
    core.take_binds().for_each(drop);
    assert_eq!(step.batch.rows.iter().map(|row| row.request).collect::<Vec<_>>(), [plain.0, first.0]);
    let held = core.record().deferred.iter().find(|held| held.request == second).unwrap();
    assert_eq!(held.reason, DeferReason::NoStateSlot);
    // An aborted request frees its state slot only when the step that names it retires.
    core.abort(first, 0);
    core.check_invariants().unwrap();
    let next = core.schedule(0).unwrap();
    assert!(next.batch.rows.iter().all(|row| row.request == plain.0));
    for mut step in [step, next] {
        answer(&mut step, 30);
        core.postprocess(&step, &Ok(()), 0);
    }
    let step = core.schedule(0).unwrap();
    assert!(step.batch.rows.iter().any(|row| row.request == second.0));
    core.check_invariants().unwrap();

    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
    let limits = Limits { state_slots: Some(0), ..Limits::default() };
    let mut none = Core::new(limits, Order::Fcfs, Box::new(policy), paged(16));
    assert_eq!(none.add(with(true), 0), Err(Refusal::NoState));
}

#[test]
fn rows_have_query_and_context_lengths() {
    let mut core = core(paged(8));
    core.add(request(&[5, 6, 7, 8, 9], 4), 0).unwrap();
    let mut step = core.schedule(0).unwrap();
    let row = step.batch.rows[0];
    assert_eq!(
        (row.kind, row.cached, row.context_len, row.tokens.len, row.sample_from),
        (RowKind::Prefill, 0, 5, 5, 4)
    );
    assert_eq!(step.plan.positions, [0, 1, 2, 3, 4]);
    answer(&mut step, 30);
    core.postprocess(&step, &Ok(()), 0);
    let step = core.schedule(0).unwrap();
    let row = step.batch.rows[0];
    assert_eq!((row.kind, row.cached, row.context_len, row.last_block_tokens), (RowKind::Decode, 5, 6, 2));
    assert_eq!((step.plan.positions.as_slice(), step.batch.tokens.as_slice()), (&[5][..], &[30][..]));
}

#[test]
fn decode_feeds_the_newest_token_and_drafts() {
    let mut core = core(paged(8));
    core.set_spec_steps(3);
    let id = core.add(request(&[5], 9), 0).unwrap();
    turn(&mut core, 14);
    core.set_drafts(id, &Proposal { tokens: vec![101, 102, 103], ..Proposal::default() });
    let mut step = core.schedule(0).unwrap();
    assert_eq!(step.batch.tokens, [14, 101, 102, 103]);
    // The first draft is accepted, the second rejected.
    step.output.tokens.extend([101, 55, 9, 9]);
    step.output.rows.push(OutputRow { tokens: Span::new(0, 4) });
    core.postprocess(&step, &Ok(()), 0);
    assert_eq!(*core.sequence(id).unwrap().outputs(), [14, 101, 55]);
    assert_eq!(core.draft_stats().totals(), (1, 3));
    assert_eq!(core.draft_stats().accepted, [1, 0, 0]);
    core.check_invariants().unwrap();
}

#[test]
fn drafts_behind_a_stop_are_not_counted_as_accepted() {
    let mut core = core(paged(8));
    core.set_spec_steps(3);
    let id = core.add(request(&[5], 9), 0).unwrap();
    turn(&mut core, 14);
    core.set_drafts(id, &Proposal { tokens: vec![101, Toy::EOS, 103], ..Proposal::default() });
    let mut step = core.schedule(0).unwrap();
    step.output.tokens.extend([101, Toy::EOS, 103, 9]);
    step.output.rows.push(OutputRow { tokens: Span::new(0, 4) });
    core.postprocess(&step, &Ok(()), 0);
    let summary = &core.outbox().ended[0];
    assert_eq!((summary.finish, summary.outputs), (Finish::Eos, 3));
    assert_eq!((summary.drafted, summary.accepted, summary.verified), (3, 2, 1));
}

/// Inputs of a `Coalescer`.
#[test]
fn live_sequences_tell_oldest_arrival_and_pending_prompt_tokens() {
    let limits = Limits { max_num_batched_tokens: 8, ..Limits::default() };
    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
    let mut core = Core::new(limits, Order::Fcfs, Box::new(policy), paged(16));
    let oldest = |core: &Core| core.waiting().map(|one| one.timings().arrived).min();
    let pending = |core: &Core| -> u32 {
        core.running().filter(|one| one.is_prefilling()).map(|one| one.to_feed()).sum()
    };
    assert_eq!((oldest(&core), pending(&core)), (None, 0));
    core.add(request(&[1; 20], 1), 999_000).unwrap();
    core.add(request(&[1], 1), 997_500).unwrap();
    assert_eq!((oldest(&core), pending(&core)), (Some(997_500), 0));
    turn(&mut core, 5);
    assert_eq!((oldest(&core), pending(&core)), (Some(997_500), 12));
}

#[test]
fn siblings_have_their_own_seeds() {
    let mut core = core(paged(32));
    assert_eq!(core.add_siblings(request(&[1], 1), 0, 0), Err(Refusal::BadParameter(Parameter::N)));
    let ids = core.add_siblings(request(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 4), 4, 0).unwrap();
    let siblings: Vec<&Sequence> = ids.iter().map(|id| core.sequence(*id).unwrap()).collect();
    assert_eq!(siblings.iter().map(|one| one.tag()).collect::<Vec<_>>(), [7, 8, 9, 10]);
    assert_eq!(siblings.iter().map(|one| one.params().sampling.seed).collect::<Vec<_>>(), [0, 1, 2, 3]);
    // The first sibling computes the prompt; the others hit all blocks of it but the last.
    assert!(turn(&mut core, 30));
    assert_eq!(core.reason(ids[1]), Some(DeferReason::Sibling));
    assert!(turn(&mut core, 31));
    let hits: Vec<u32> = ids.iter().map(|id| core.sequence(*id).unwrap().hit()).collect();
    assert_eq!(hits, [0, 8, 8, 8]);
}

#[test]
fn siblings_on_cells_fork_the_prompt() {
    let mut core = core(Box::new(Cells::new(64, 8, None).unwrap()));
    let prompt: Vec<Token> = (1..=20).collect();
    let ids = core.add_siblings(request(&prompt, 4), 3, 0).unwrap();
    assert!(turn(&mut core, 30));
    assert!(turn(&mut core, 31));
    let hits: Vec<u32> = ids.iter().map(|id| core.sequence(*id).unwrap().hit()).collect();
    assert_eq!(hits, [0, 19, 19]);
    assert_eq!(core.cache().usage().held, 20 + 2, "the prompt is there once");
    while turn(&mut core, 32) {
        core.check_invariants().unwrap();
    }
    assert_eq!(core.cache().usage().free, 64);
}

#[test]
fn last_sequence_on_scattered_cells_is_compacted() {
    let mut core = core(Box::new(Cells::new(64, 8, None).unwrap()));
    core.add(request(&[1, 2, 3, 4, 5], 3), 0).unwrap();
    core.add(request(&[6, 7, 8], 8), 0).unwrap();
    let mut kinds = Vec::new();
    while let Some(mut step) = core.schedule(0) {
        core.take_binds().for_each(drop);
        kinds.push((step.batch.rows.len(), step.plan.kind, step.plan.moves.len()));
        answer(&mut step, 30);
        core.postprocess(&step, &Ok(()), 0);
        core.check_invariants().unwrap();
        core.recycle(step);
    }
    use kvasir_kv::PlanKind::{Contiguous, Ragged};
    assert_eq!(kinds[..3], [(2, Ragged, 0); 3]);
    assert_eq!(kinds[3], (1, Contiguous, 5), "its cells were moved to the front");
    assert!(kinds[4..].iter().all(|kind| *kind == (1, Contiguous, 0)), "{kinds:?}");
}

#[test]
fn refusal_emits_an_event_and_changes_nothing_else() {
    let mut core = core(paged(2));
    let limits = *core.limits();
    let refused = core.add(request(&[1; 9], 1), 0).unwrap_err();
    assert_eq!(refused, Refusal::NeverFits { needed: 12, capacity: 8 });
    assert_eq!(core.events()[0].finish, Some(Finish::Refused(refused)));
    assert_eq!(core.add(request(&[], 1), 0), Err(Refusal::EmptyPrompt));
    let long = core.add(request(&vec![1; 5000], 1), 0).unwrap_err();
    assert_eq!(long, Refusal::TooLong { tokens: 5000, limit: limits.longest_prompt() });
    assert_eq!(long.to_string(), "prompt: `5000` tokens exceed the limit of 4095; shorten it");
    assert!(core.is_idle());
    core.check_invariants().unwrap();
}

#[test]
fn siblings_are_all_queued_or_none() {
    let limits = Limits { max_waiting: 3, ..Limits::default() };
    let mut core = Core::new(limits, Order::Fcfs, Box::new(PrefillFirst::new(Chunking::Off, 0.0)), paged(8));
    let refused = core.add_siblings(Request { tag: 70, ..request(&[1, 2, 3], 4) }, 4, 0);
    assert_eq!(refused, Err(Refusal::QueueFull { limit: 3 }));
    // Each sibling gets its own refusal event.
    let reported: Vec<_> = core.events().iter().map(|event| (event.tag, event.finish)).collect();
    let refusal = Some(Finish::Refused(Refusal::QueueFull { limit: 3 }));
    assert_eq!((core.counts(), reported), ((0, 0), (70..74).map(|tag| (tag, refusal)).collect()));
    assert_eq!(core.add_siblings(request(&[1, 2, 3], 4), 3, 0).map(|ids| ids.len()), Ok(3));
    core.check_invariants().unwrap();
}

#[test]
fn preemption_at_any_step_loses_and_repeats_nothing() {
    for at in 0..6 {
        let mut core = core(paged(8));
        let id = core.add(request(&[5, 6, 7, 8, 9], 6), 0).unwrap();
        for token in 0..6 {
            if token == at {
                core.preempt(id);
            }
            assert!(turn(&mut core, 30 + token));
            core.check_invariants().unwrap();
        }
        let tokens: Vec<Token> = core.outbox().iter().flat_map(|one| one.tokens.to_vec()).collect();
        assert_eq!(tokens, [30, 31, 32, 33, 34, 35], "preempted at {at}");
    }
}

#[test]
fn token_in_flight_survives_preemption() {
    let mut core = core(paged(8));
    let id = core.add(request(&[5, 6, 7], 4), 0).unwrap();
    let mut first = core.schedule(0).unwrap();
    let mut second = core.schedule(0).unwrap();
    assert_eq!(second.batch.tokens, [kvasir_exec::IN_FLIGHT]);
    core.preempt(id);
    assert!(core.schedule(0).is_none(), "it waits for what is in flight");
    assert_eq!(core.reason(id), Some(DeferReason::TokenInFlight));
    answer(&mut first, 40);
    core.postprocess(&first, &Ok(()), 0);
    answer(&mut second, 41);
    core.postprocess(&second, &Ok(()), 0);
    let again = core.schedule(0).unwrap();
    assert_eq!(again.batch.tokens, [5, 6, 7, 40, 41]);
    core.check_invariants().unwrap();
}

#[test]
fn results_of_ended_requests_are_dropped() {
    let mut core = core(paged(8));
    let id = core.add(request(&[5, 6, 7], 9), 0).unwrap();
    let mut first = core.schedule(0).unwrap();
    let mut second = core.schedule(0).unwrap();
    answer(&mut first, Toy::EOS);
    core.postprocess(&first, &Ok(()), 0);
    assert_eq!(core.sequence(id).unwrap().status(), Status::Finished, "a step in flight still names it");
    core.check_invariants().unwrap();
    answer(&mut second, 50);
    core.postprocess(&second, &Ok(()), 0);
    assert!(core.sequence(id).is_none());
    assert_eq!(core.outbox().tokens, [Toy::EOS]);
    assert!(core.is_idle());
}

#[test]
fn canceled_step_restores_all_state() {
    for cache in [paged(8), Box::new(Cells::new(32, 8, None).unwrap())] {
        let mut core = core(cache);
        let id = core.add(request(&[5, 6, 7], 9), 0).unwrap();
        turn(&mut core, 30);
        let usage = core.cache().usage();
        let step = core.schedule(0).unwrap();
        core.cancel(&step);
        core.check_invariants().unwrap();
        assert_eq!((core.cache().usage(), core.sequence(id).unwrap().claimed()), (usage, 3));
        turn(&mut core, 31);
        assert_eq!(*core.sequence(id).unwrap().outputs(), [30, 31]);
    }
}

#[test]
fn queue_order_decides_admission() {
    let admitted = |order| {
        let limits = Limits { max_num_seqs: 1, ..Limits::default() };
        let mut core = Core::new(limits, order, Box::new(Chunked::new(64, Mixing::Off)), paged(64));
        for (tag, (priority, key)) in [(0, 1), (2, 1), (1, 1), (2, 2)].into_iter().enumerate() {
            let mut one = request(&[1; 4], 1);
            one.tag = tag as u64;
            (one.params.priority, one.params.key, one.params.max_tokens) = (priority, key, 600);
            one.params.stop_ids = vec![9];
            core.add(one, 0).unwrap();
        }
        while turn(&mut core, 9) {}
        core.outbox().ended.iter().map(|one| one.tag).collect::<Vec<_>>()
    };
    assert_eq!(admitted(Order::Fcfs), [0, 1, 2, 3]);
    assert_eq!(admitted(Order::Priority), [1, 3, 2, 0]);
    assert_eq!(admitted(Order::Fair), [0, 3, 1, 2]);
}

#[test]
fn low_priority_is_not_starved() {
    let limits = Limits { max_num_seqs: 1, ..Limits::default() };
    let mut core = Core::new(limits, Order::Priority, Box::new(Chunked::new(64, Mixing::Off)), paged(64));
    let add = |core: &mut Core, tag: u64, priority: i32| {
        let mut one = request(&[1; 4], 1);
        (one.tag, one.params.priority) = (tag, priority);
        core.add(one, 0).unwrap();
    };
    // Three urgent requests wait at any time, beside three that are not.
    (0..3).for_each(|tag| add(&mut core, tag, i32::MIN));
    (100..103).for_each(|tag| add(&mut core, tag, i32::MAX));
    let mut ended = Vec::new();
    while ended.len() < 60 {
        assert!(turn(&mut core, 30));
        for one in std::mem::take(&mut core.outbox().ended) {
            ended.push(one.tag);
            add(&mut core, 100 + ended.len() as u64 + 2, i32::MAX);
        }
    }
    let at = |tag: u64| ended.iter().position(|other| *other == tag);
    assert_eq!([at(0), at(1), at(2)], [Some(16), Some(32), Some(48)]);
}

#[test]
fn watermark_stays_free_while_requests_run() {
    for (watermark, both) in [(0, true), (200, false)] {
        // Ten blocks of four; a fifth of them is eight slots.
        let limits = Limits { watermark, ..Limits::default() };
        let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.0);
        let mut core = Core::new(limits, Order::Fcfs, Box::new(policy), paged(10));
        core.add(request(&[5; 20], 1), 0).unwrap();
        let second = core.add(request(&[6; 16], 1), 0).unwrap();
        assert!(turn(&mut core, 30));
        if both {
            assert!(core.sequence(second).is_none(), "it ran with the first, and has ended")
        } else {
            assert_eq!(core.reason(second), Some(DeferReason::Reserved { needed: 16, available: 12 }));
            // Without running sequences the watermark does not apply.
            assert!(turn(&mut core, 31) && core.is_idle());
        }
    }
}

#[test]
fn coalescing_defers_admission_only_while_requests_run() {
    let mut core = core(paged(8));
    core.defer_admissions(true);
    core.add(request(&[5, 6, 7], 9), 0).unwrap();
    assert!(turn(&mut core, 30), "nothing else would run");
    let late = core.add(request(&[8, 9], 9), 0).unwrap();
    assert!(turn(&mut core, 31));
    assert_eq!(core.reason(late), Some(DeferReason::Coalesce));
    core.defer_admissions(false);
    assert!(turn(&mut core, 32));
    assert_eq!(*core.sequence(late).unwrap().outputs(), [32]);
}

#[test]
fn text_stops_truncate_outputs() {
    let mut core = core(paged(8));
    let id = core.add(request(&[5, 6, 7], 9), 0).unwrap();
    (0..3).for_each(|i| assert!(turn(&mut core, 30 + i)));
    assert!(core.stop_at(id, 2, 0));
    assert_eq!(core.outbox().ended[0].outputs, 2);
    assert_eq!(core.events().last().unwrap().finish, Some(Finish::StopText));
    assert!(!core.stop_at(id, 1, 0));
    assert!(core.is_idle());
}

fn engine() -> Engine<Toy> {
    let cache = Radix::new(BlockConfig { block_size: 4, blocks: 64, ..BlockConfig::default() }).unwrap();
    let policy = Box::new(Chunked::new(64, Mixing::Off));
    let core =
        Core::new(Limits::default().within(&Toy::new().abilities()), Order::Fcfs, policy, Box::new(cache));
    let mut now = 0;
    Engine::new(core, Toy::new(), move || {
        now += 1000;
        now
    })
}

#[test]
fn completions_equal_requests_run_alone_and_carry_timings() {
    let mut engine = engine();
    let prompts: [&[Token]; 3] = [&[103], &[100; 6], &[]];
    let results = complete_all(&mut engine, prompts.map(|prompt| request(prompt, 11)).to_vec());
    for (prompt, result) in prompts.iter().zip(&results).take(2) {
        let completion = result.as_ref().unwrap();
        assert_eq!(completion.tokens, Toy::alone(prompt, 11, false));
        assert!(completion.summary.ttft().unwrap() > 0);
        assert!(completion.summary.tpot().unwrap() > 0);
    }
    assert_eq!(results[2], Err(Refusal::EmptyPrompt));
}

#[test]
fn serve_completes_requests_before_draining() {
    let (send, inbox) = channel();
    let (deliver, received) = channel();
    let mut engine = engine();
    let thread = std::thread::spawn(move || {
        engine.serve(&inbox, |outbox| {
            outbox.iter().for_each(|one| {
                deliver.send((one.event.tag, one.tokens.to_vec(), one.event.finish)).unwrap()
            });
        })
    });
    send.send(Message::Add { request: Box::new(request(&[103], 5)), n: 2 }).unwrap();
    send.send(Message::Drain).unwrap();
    assert_eq!(thread.join().unwrap(), Exit::Requested);
    let all: Vec<_> = received.into_iter().collect();
    for tag in [7, 8] {
        let tokens: Vec<Token> =
            all.iter().filter(|one| one.0 == tag).flat_map(|one| one.1.clone()).collect();
        assert_eq!(tokens, Toy::alone(&[103], 5, false));
    }
    assert_eq!(all.iter().filter(|one| one.2 == Some(Finish::MaxTokens)).count(), 2);
}

#[test]
fn serve_exits_on_request_and_when_all_senders_are_gone() {
    for planned in [true, false] {
        let (send, inbox) = channel();
        let mut engine = engine();
        let thread = std::thread::spawn(move || {
            let mut ends = Vec::new();
            let exit = engine.serve(&inbox, |outbox| ends.extend(outbox.ended.clone()));
            (exit, ends)
        });
        send.send(Message::Add { request: Box::new(request(&[103], 2000)), n: 1 }).unwrap();
        if planned {
            send.send(Message::Exit).unwrap();
        }
        drop(send);
        let (exit, ends) = thread.join().unwrap();
        assert_eq!(ends.len(), 1, "the running request is reported");
        assert_eq!(exit, if planned { Exit::Requested } else { Exit::Closed });
    }
}

/// A drafter of one wrong token; claims tree support if `trees`.
struct Guess {
    trees: bool,
}

impl Drafter for Guess {
    fn width(&self) -> u32 {
        1
    }

    fn proposes_trees(&self) -> bool {
        self.trees
    }

    fn propose(&mut self, _: &Sequence, proposal: &mut Proposal) {
        proposal.tokens.push(9);
    }
}

#[test]
fn draft_trees_are_refused_by_caches_without_them() {
    let policy = || Box::new(Chunked::new(64, Mixing::Off));
    let over = |cache: Box<dyn Cache>| {
        Engine::new(Core::new(Limits::default(), Order::Fcfs, policy(), cache), Toy::new(), || 0)
    };
    let line = || Box::new(Contiguous::new(64));
    let refused = over(line()).draft(Box::new(Guess { trees: true })).err().unwrap();
    assert_eq!(
        refused,
        CacheError::NoCapability { kind: CacheKind::Contiguous, capability: Capability::Tree }
    );
    let mut chains = over(line()).draft(Box::new(Guess { trees: false })).unwrap();
    assert!(over(paged(8)).draft(Box::new(Guess { trees: true })).is_ok());
    let answer = complete(&mut chains, request(&[5, 6, 7], 8));
    assert_eq!(answer.tokens, Toy::alone(&[5, 6, 7], 8, false));
}

/// A device that refuses its second step.
struct Refusing(Toy, u32);

impl Executor for Refusing {
    type Pending = <Toy as Executor>::Pending;

    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.0.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Self::Pending, Refused> {
        self.1 += 1;
        match self.1 {
            2 => Err(Refused { step, error: StepError::OutOfMemory("no workspace".into()) }),
            _ => self.0.submit(step),
        }
    }

    fn wait(&mut self, pending: Self::Pending) -> (Box<Step>, Result<(), StepError>) {
        self.0.wait(pending)
    }
}

/// The steps that were scheduled and not completed, and those that failed.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<(Vec<StepId>, Vec<StepId>)>>);

impl Observer for Open {
    fn scheduled(&mut self, _: &Core, step: &Step) {
        self.0.lock().unwrap().0.push(step.batch.step);
    }

    fn completed(&mut self, _: &Core, step: &Step, result: &Result<(), StepError>, _: Nanos) {
        let mut steps = self.0.lock().unwrap();
        steps.0.retain(|open| *open != step.batch.step);
        if result.is_err() {
            steps.1.push(step.batch.step);
        }
    }
}

#[test]
fn observers_see_a_refused_step_fail() {
    for overlap in [false, true] {
        let steps = Open::default();
        let mut engine = Engine::new(core(paged(8)), Refusing(Toy::new(), 0), || 0)
            .overlap(overlap)
            .observe(Box::new(steps.clone()));
        engine.core_mut().add(request(&[5, 6, 7], 8), 0).unwrap();
        while engine.step() != Ok(Turn::Idle) {}
        let (open, failed) = steps.0.lock().unwrap().clone();
        assert_eq!((open.len(), failed.len()), (0, 1), "overlap {overlap}");
    }
}

#[test]
fn mixed_chunks_shrink_as_token_costs_grow() {
    let cache = Paged::new(BlockConfig { block_size: 4, blocks: 1024, ..BlockConfig::default() }).unwrap();
    let target = Some(StepTarget::Percent(400));
    let policy = Chunked::new(1 << 16, Mixing::On { target });
    let mut core = Core::new(Limits::default(), Order::Fcfs, Box::new(policy), Box::new(cache));
    core.set_costs(Costs { step_ns: 10_000, row_ns: 0, token_ns: 100, depth_ns: 100, ..Costs::default() });
    let chunks = |core: &mut Core| -> Vec<u32> {
        let mut step = core.schedule(0).unwrap();
        core.take_binds().for_each(drop);
        answer(&mut step, 30);
        core.postprocess(&step, &Ok(()), 0);
        let prompts = step.batch.rows.iter().filter(|row| row.kind.is_prefill());
        prompts.map(|row| row.tokens.len).collect()
    };
    core.add(request(&[5], 1000), 0).unwrap();
    assert_eq!(chunks(&mut core), [1], "no row decodes");
    core.add(request(&[6; 1000], 1), 0).unwrap();
    core.add(request(&[7; 20], 1), 0).unwrap();
    // 30 µs are left for prefill in each step. What the first prompt leaves of the last step goes
    // to the second.
    let all: Vec<_> = (0..6).map(|_| chunks(&mut core)).collect();
    assert_eq!(all, [vec![264], vec![218], vec![190], vec![170], vec![156], vec![2, 20]]);
}

#[test]
fn delay_factor_waits_for_a_share_of_the_last_prefill_step() {
    let policy = PrefillFirst::new(Chunking::On { cap: None }, 0.5);
    let mut core = Core::new(Limits::default(), Order::Fcfs, Box::new(policy), paged(64));
    core.add(request(&[5], 100), 0).unwrap();
    let kind_at = |core: &mut Core, now| {
        let mut step = core.schedule(now).unwrap();
        core.take_binds().for_each(drop);
        answer(&mut step, 30);
        core.postprocess(&step, &Ok(()), now);
        step.batch.kind
    };
    assert_eq!(kind_at(&mut core, 0), StepKind::Prefill);
    // Later than the next call of the scheduler: the device has been busy with another step.
    core.set_costs(Costs { prefill_ns: 1000, ..Costs::default() });
    core.add(request(&[6, 7], 1), 7000).unwrap();
    assert_eq!(kind_at(&mut core, 7500), StepKind::Decode, "not longer than half of the prefill");
    assert_eq!(kind_at(&mut core, 7501), StepKind::Prefill);
}
