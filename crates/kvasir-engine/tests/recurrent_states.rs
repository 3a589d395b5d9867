//! Models with recurrent states on the toy device: limits of live states, checkpoints at marks,
//! unsupported operations, and failures of steps that store checkpoints. `tests/toy` and
//! `tests/sessions.rs` run random workloads.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{Executor, Step};
use kvasir_kv::{Cache, CacheConfig, CacheError, CacheKind, StateConfig, Token, build};
use kvasir_sim::{Toy, ToyShape};
use kvasir_testkit::complete::{complete, drain};

const STATES: StateConfig = StateConfig { live: 2, checkpoints: 8, tail_rows: 3, interval: 0 };
const SHAPE: ToyShape = ToyShape { windows: Vec::new(), state: true };
const BLOCK: u32 = 4;

fn cache(kind: CacheKind, states: StateConfig) -> Box<dyn Cache> {
    let block_size = if kind.is_block_based() { BLOCK } else { 1 };
    let config = CacheConfig { block_size, states: Some(states), ..CacheConfig::new(4096) };
    build(kind, &config).unwrap()
}

fn core(kind: CacheKind, states: StateConfig) -> Core {
    let policy = Box::new(Chunked::new(16, Mixing::Off));
    Core::new(Limits::default(), Order::Fcfs, policy, cache(kind, states))
}

fn engine(kind: CacheKind, states: StateConfig) -> Engine<Toy> {
    Engine::new(core(kind, states), Toy::new().with_shape(SHAPE), || 0)
}

fn tokens(first: Token, count: u32) -> Vec<Token> {
    (0..count).map(|i| first + i % 7).collect()
}

fn request(prompt: Vec<Token>, max_tokens: u32) -> Request {
    Request { tag: 1, prompt, params: Params { max_tokens, ignore_eos: true, ..Params::default() } }
}

/// Completes a request, checks its answer, and returns the number of cached prompt tokens.
fn cached(engine: &mut Engine<Toy>, request: Request) -> u32 {
    let expected = SHAPE.alone(&request.prompt, request.params.max_tokens, true);
    let done = complete(engine, request);
    assert_eq!(done.tokens, expected);
    assert_eq!(engine.executor().violations().first(), None);
    engine.core().check_invariants().unwrap();
    done.summary.cached
}

#[test]
fn requests_wait_for_a_live_state() {
    let mut core = core(CacheKind::Radix, StateConfig { live: 1, ..STATES });
    let ids = [100, 200].map(|first| core.add(request(tokens(first, 9), 4), 0).unwrap());
    let step = core.schedule(0).unwrap();
    assert_eq!((step.batch.rows.len(), core.counts()), (1, (1, 1)));
    assert_eq!(core.reason(ids[1]), Some(DeferReason::NoStateSlot));
    core.abort(ids[0], 0);
    assert!(core.schedule(0).is_none(), "the step in flight names the state");
    assert_eq!(core.reason(ids[1]), Some(DeferReason::NoStateSlot));
}

#[test]
fn a_key_within_its_share_gets_a_live_state() {
    let policy = Box::new(Chunked::new(16, Mixing::On { target: None }));
    let mut core = Core::new(Limits::default(), Order::Fair, policy, cache(CacheKind::Radix, STATES));
    let mut toy = Toy::new().with_shape(SHAPE);
    let of_key = |key: u64, first: Token| {
        let mut request = request(tokens(first, 9), 100);
        request.params.key = key;
        request
    };
    for first in [100, 200, 300] {
        core.add(of_key(1, first), 0).unwrap();
    }
    run(&mut core, &mut toy);
    assert_eq!(core.counts(), (1, 2), "one key holds both live states");
    let other = core.add(of_key(2, 400), 0).unwrap();
    let mut tickets = std::collections::VecDeque::from([submit(&mut core, &mut toy)]);
    let mut preempted = core.record().preempted.len();
    for _ in 0..3 {
        tickets.push_back(submit(&mut core, &mut toy));
        preempted += core.record().preempted.len();
        commit(&mut core, &mut toy, tickets.pop_front().unwrap());
        core.check_invariants().unwrap();
    }
    assert_eq!((core.sequence(other).unwrap().status(), preempted), (Status::Running, 1));
}

#[test]
fn a_turn_computes_only_its_newest_message() {
    let mut branches = 0;
    for (kind, session, drafts) in [
        (CacheKind::Radix, None, false),
        (CacheKind::Paged, None, true),
        (CacheKind::Radix, Some(SessionId(1)), true),
        (CacheKind::Cells, Some(SessionId(1)), false),
    ] {
        let mut engine = engine(kind, StateConfig { checkpoints: 200, ..STATES });
        if drafts {
            engine = engine.draft(Box::new(NgramDrafter::new(1, 3))).unwrap();
        }
        let block = engine.core().cache().shape().block_size;
        let (mut history, mut ends) = (Vec::new(), Vec::new());
        for turn in 0..20 {
            let computed = (history.len() as u32).saturating_sub(1);
            history.extend(tokens(100 + turn, 5 + turn * 7 % 23));
            ends.push(history.len() as u32);
            let mut request = request(history.clone(), 10);
            (request.params.session, request.params.marks) = (session, ends.clone());
            assert_eq!(cached(&mut engine, request), computed / block * block, "{kind}, turn {turn}");
            history.extend(SHAPE.alone(&history, 10, true));
            ends.push(history.len() as u32);
        }
        // The conversation branches at the end of each message.
        for &end in ends.iter().filter(|_| session.is_none()) {
            let prompt = [&history[..end as usize], &tokens(900, 9)].concat();
            let hit = cached(&mut engine, request(prompt, 1));
            assert!(hit >= end.saturating_sub(1) / block * block, "{kind}: {hit} of {end}");
            branches += 1;
        }
    }
    assert_eq!(branches, 80);
}

#[test]
fn prompts_hit_marks_and_points_of_divergence() {
    let mut engine = engine(CacheKind::Radix, STATES);
    let diverging = |first: Token| [tokens(100, 40), tokens(first, 12)].concat();
    let mut first = request(diverging(200), 4);
    first.params.marks = vec![33];
    assert_eq!(cached(&mut engine, first), 0);
    assert_eq!(cached(&mut engine, request(diverging(200), 4)), 48, "the end of the prompt");
    assert_eq!(cached(&mut engine, request(diverging(300), 4)), 32, "the mark");
    assert_eq!(cached(&mut engine, request(diverging(400), 4)), 40, "the point of divergence");
}

#[test]
fn a_computed_mark_is_hit_before_its_prompt_completes() {
    let mut core = core(CacheKind::Radix, STATES);
    let mut long = request(tokens(100, 64), 4);
    long.params.marks = vec![16];
    core.add(long, 0).unwrap();
    let mut toy = Toy::new().with_shape(SHAPE);
    run(&mut core, &mut toy);
    let sharing = core.add(request([tokens(100, 16), tokens(300, 4)].concat(), 4), 0).unwrap();
    while core.sequence(sharing).is_some_and(|sequence| sequence.timings().admitted.is_none()) {
        run(&mut core, &mut toy);
    }
    assert_eq!(core.sequence(sharing).unwrap().hit(), 16);
}

#[test]
fn retained_sessions_use_at_most_half_of_the_checkpoints() {
    for kind in [CacheKind::Cells, CacheKind::Radix] {
        let mut engine = engine(kind, StateConfig { checkpoints: 6, ..STATES });
        let of_session = |session: u32| {
            let mut request = request(tokens(100 * session, 21), 4);
            request.params.session = Some(SessionId(session.into()));
            request
        };
        (1..=9).for_each(|session| _ = cached(&mut engine, of_session(session)));
        let core = engine.core();
        let retained: Vec<u64> = (1..=9).filter(|n| core.retained_len(SessionId(*n)) > 0).collect();
        assert_eq!(retained, [7, 8, 9], "{kind}");
        let group = core.cache().shape().groups.states().unwrap();
        let free = core.cache().usage_of(group).free;
        assert_eq!(free, STATES.live, "{kind}: retained sessions hold no live state");
        let turn = |session: u32| {
            let answer = SHAPE.alone(&tokens(100 * session, 21), 4, true);
            let mut request = of_session(session);
            request.prompt.extend(answer.into_iter().chain(tokens(50, 5)));
            request
        };
        assert_eq!(cached(&mut engine, turn(8)), 24, "{kind}");
    }
}

#[test]
fn recurrent_states_refuse_trees_transfers_and_cuts() {
    struct Trees;
    impl Drafter for Trees {
        fn width(&self) -> u32 {
            4
        }
        fn proposes_trees(&self) -> bool {
            true
        }
        fn propose(&mut self, _: &Sequence, _: &mut Proposal) {}
    }
    for &kind in CacheKind::ALL {
        let mut engine = engine(kind, STATES);
        let transfer = engine.kv_layout().unwrap_err().to_string();
        assert!(transfer.contains("recurrent") || !kind.is_block_based(), "{transfer}");
        if !kind.holds_one_sequence() {
            assert_eq!(engine.core().cut_obstacle(), Some(CutObstacle::RecurrentState));
        }
        let Err(trees) = engine.draft(Box::new(Trees)) else { panic!("{kind} accepts draft trees") };
        assert!(matches!(trees, CacheError::NoCapability { .. }), "{trees}");
    }
}

#[test]
fn a_preempted_request_resumes_at_a_checkpoint() {
    let mut engine = engine(CacheKind::Paged, STATES);
    let id = engine.add_request(request(tokens(100, 18), 20)).unwrap();
    while engine.core().sequence(id).unwrap().outputs_len() < 9 {
        engine.step().unwrap();
    }
    assert!(engine.core_mut().preempt(id));
    while engine.core().sequence(id).unwrap().status() == Status::Waiting {
        engine.step().unwrap();
    }
    assert_eq!(engine.core().sequence(id).unwrap().hit(), 24, "26 tokens were computed");
    drain(&mut engine);
    let outbox = engine.core_mut().outbox();
    let answer: Vec<Token> = outbox.iter().flat_map(|output| output.tokens).copied().collect();
    assert_eq!(answer, SHAPE.alone(&tokens(100, 18), 20, true));
}

/// Schedules and submits a step, and returns its ticket.
fn submit(core: &mut Core, toy: &mut Toy) -> u64 {
    let step = core.schedule(0).unwrap();
    core.take_binds().for_each(|(row, spec)| toy.bind(row, spec));
    toy.submit(step).unwrap_or_else(|refused| panic!("{:?}", refused.error))
}

/// Waits for a step and commits it.
fn commit(core: &mut Core, toy: &mut Toy, ticket: u64) -> Box<Step> {
    let (step, result) = toy.wait(ticket);
    core.postprocess(&step, &result, 0);
    step
}

/// Runs one step.
fn run(core: &mut Core, toy: &mut Toy) {
    let ticket = submit(core, toy);
    commit(core, toy, ticket);
}

/// The step after accepted drafts stores a checkpoint at the position of one of them, although
/// their K/V is computed already. If that step fails, no request may hit the checkpoint.
#[test]
fn checkpoints_of_a_failed_step_are_never_hit() {
    let mut core = core(CacheKind::Radix, STATES);
    core.set_spec_steps(3);
    let prompt = tokens(100, 9);
    let answer = SHAPE.alone(&prompt, 10, true);
    let id = core.add(request(prompt, 10), 0).unwrap();
    let mut toy = Toy::new().with_shape(SHAPE);
    run(&mut core, &mut toy);
    core.set_drafts(id, &Proposal { tokens: answer[1..4].to_vec(), ..Proposal::default() });
    run(&mut core, &mut toy);
    assert_eq!(core.sequence(id).unwrap().computed(), 13);
    let ticket = submit(&mut core, &mut toy);
    core.preempt(id);
    toy.fail_next(false);
    let failed = commit(&mut core, &mut toy, ticket);
    assert_eq!(failed.plan.states.saves.len(), 1, "at position 12");
    run(&mut core, &mut toy);
    assert_eq!(core.sequence(id).unwrap().hit(), 8, "the end of the prompt");
    while !core.is_idle() {
        run(&mut core, &mut toy);
    }
    let outputs: Vec<Token> = core.outbox().iter().flat_map(|output| output.tokens).copied().collect();
    assert_eq!((outputs, toy.violations().first()), (answer, None));
}
