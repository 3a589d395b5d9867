//! A sequence of 100,000 tokens with 200 checkpoints, forks and rewinds through the real engine:
//! every answer follows from the states that its steps read, and every pool is free at the end.
//!
//! The device computes recurrent states only. The toy device folds all earlier rows for each token,
//! which is quadratic.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{Abilities, Executor, OutputRow, PoolRow, Ran, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::{CacheConfig, CacheKind, PoolId, Position, Slot, Span, StateConfig, StateRow, Token, build};
use kvasir_testkit::Random;
use kvasir_testkit::complete::complete;

const STATES: StateConfig = StateConfig { live: 3, checkpoints: 200, tail_rows: 0, interval: 512 };
const LENGTH: usize = 100_000;
const OUTPUTS: u32 = 6;

/// A recurrent state: a digest of the tokens that it covers, and their number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    digest: u64,
    len: Position,
}

impl State {
    fn after(self, token: Token) -> Self {
        let digest = (self.digest ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        Self { digest, len: self.len + 1 }
    }

    /// The token that the model generates after this state.
    fn next(self) -> Token {
        (self.digest >> 40) as Token
    }
}

/// The answer to a prompt, computed without an engine.
fn answer(prompt: &[Token]) -> Vec<Token> {
    let mut state = prompt.iter().fold(State::default(), |state, &token| state.after(token));
    let next = |_| {
        let token = state.next();
        state = state.after(token);
        token
    };
    (0..OUTPUTS).map(next).collect()
}

/// Computes the states of steps without drafts.
struct StateDevice {
    slots: Vec<Option<State>>,
    /// Newest token by pool row, for tokens in flight.
    newest: Vec<Token>,
}

impl StateDevice {
    fn read(&self, row: &StateRow) -> State {
        let Some((pool, slot)) = row.from else { return State::default() };
        assert_eq!(pool, PoolId(0));
        self.slots[slot as usize].unwrap()
    }

    fn run(&mut self, step: &mut Step) {
        let Step { batch, plan, output } = step;
        output.reset();
        // A row may read a slot that another row of the step writes only in place.
        let before: Vec<State> = plan.states.rows.iter().map(|row| self.read(row)).collect();
        for ((row, planned), mut state) in batch.rows.iter().zip(&plan.states.rows).zip(before) {
            assert_eq!((planned.replay, row.drafts.count), (0, 0));
            let start = output.tokens.len();
            for (query, at) in row.tokens.range().enumerate() {
                if query as u32 >= planned.skip {
                    assert_eq!(plan.positions[at], state.len, "a step continues from another position");
                    let token = batch.tokens[at];
                    let newest = self.newest[row.pool_row.0 as usize];
                    state = state.after(if token == kvasir_exec::IN_FLIGHT { newest } else { token });
                    let saves = &plan.states.saves[planned.saves.range()];
                    let after = query as u32 + 1 - planned.skip;
                    let save = saves.iter().filter(|save| save.after == after).map(|save| save.slot);
                    let to = (planned.commit == after).then_some(planned.to);
                    save.chain(to).for_each(|slot: Slot| self.slots[slot as usize] = Some(state));
                }
                if query as u32 >= row.sample_from {
                    output.tokens.push(state.next());
                }
            }
            if let Some(&token) = output.tokens[start..].last() {
                self.newest[row.pool_row.0 as usize] = token;
            }
            output.rows.push(OutputRow { tokens: Span::new(start, output.tokens.len() - start) });
        }
    }
}

impl Executor for StateDevice {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        Abilities::all(2, 1 << 16, self.newest.len() as u32)
    }

    fn bind(&mut self, row: PoolRow, _: SequenceSpec) {
        self.newest[row.0 as usize] = 0;
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
        Ok(Ran::now(step, |step| {
            self.run(step);
            Ok(())
        }))
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        pending.into_parts()
    }
}

/// An engine, and what its run has covered.
struct Run {
    engine: Engine<StateDevice>,
    random: Random,
    forks: u32,
    rewinds: u32,
    /// Prompt tokens of all requests, and those of them that were cached.
    prompts: u64,
    cached: u64,
}

impl Run {
    fn new(kind: CacheKind) -> Self {
        let block_size = if kind.is_block_based() { 16 } else { 1 };
        let config = CacheConfig { block_size, states: Some(STATES), ..CacheConfig::new(1 << 18) };
        let policy = Box::new(Chunked::new(1024, Mixing::On { target: None }));
        let limits = Limits { max_model_len: 1 << 19, ..Limits::default() };
        let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
        let slots = vec![None; STATES.slots() as usize];
        let device = StateDevice { slots, newest: vec![0; 64] };
        let engine = Engine::new(core, device, || 0);
        Self { engine, random: Random::new(5), forks: 0, rewinds: 0, prompts: 0, cached: 0 }
    }

    /// Appends a message and its answer to a conversation, and returns its new end.
    fn turn(&mut self, session: u64, history: &mut Vec<Token>, message: u32) {
        history.extend((0..message).map(|_| self.random.between(0, 90_000)));
        let marks = vec![history.len() as Position];
        let params = Params {
            session: Some(SessionId(session)),
            max_tokens: OUTPUTS,
            ignore_eos: true,
            marks,
            ..Params::default()
        };
        let done = complete(&mut self.engine, Request { tag: 0, prompt: history.clone(), params });
        assert_eq!(done.tokens, answer(history), "at {} tokens", history.len());
        self.prompts += history.len() as u64;
        self.cached += u64::from(done.summary.cached);
        history.extend(done.tokens);
        self.engine.core().check_invariants().unwrap();
    }

    /// Forks the conversation, and runs a turn of the fork.
    fn fork(&mut self, history: &[Token]) {
        let at = self.random.between(1, history.len() as u32);
        let mut fork = history[..at as usize].to_vec();
        self.engine.core_mut().fork_session(SessionId(1), SessionId(2), at);
        self.turn(2, &mut fork, 40);
        self.engine.core_mut().end_session(SessionId(2));
        self.forks += 1;
    }

    fn rewind(&mut self, history: &mut Vec<Token>) {
        let to = history.len() as u32 - self.random.between(0, 3000).min(history.len() as u32 - 1);
        history.truncate(to as usize);
        self.engine.core_mut().rewind_session(SessionId(1), to);
        self.rewinds += 1;
    }
}

#[test]
fn a_long_sequence_leaves_every_pool_free() {
    for kind in [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells] {
        let mut run = Run::new(kind);
        let mut history = Vec::new();
        while history.len() < LENGTH {
            let message = run.random.between(200, 5000);
            run.turn(1, &mut history, message);
            if run.random.chance(40) {
                run.fork(&history);
            }
            if run.random.chance(25) {
                run.rewind(&mut history);
            }
        }
        let Run { forks, rewinds, prompts, cached, .. } = run;
        assert!(forks > 5 && rewinds > 5, "{kind}: {forks} forks, {rewinds} rewinds");
        assert!(cached * 10 > prompts * 8, "{kind}: {cached} of {prompts} prompt tokens were cached");
        run.engine.core_mut().end_session(SessionId(1));
        let cache = run.engine.core().cache();
        cache.check().unwrap();
        let (shape, group) = (cache.shape(), cache.shape().groups.states().unwrap());
        assert_eq!(cache.usage_of(group).free, STATES.live, "{kind}: live states");
        let usage = cache.usage();
        assert_eq!((usage.held, usage.leased), (0, 0), "{kind}: K/V slots");
        assert_eq!(usage.free + usage.evictable, shape.capacity, "{kind}: K/V slots");
        // A request of all slots evicts the prefix cache, and with it the last checkpoints.
        let mut all = Vec::new();
        run.turn(3, &mut all, (1 << 18) - 64);
        run.engine.core_mut().end_session(SessionId(3));
        history.truncate(LENGTH);
        let computed = run.cached;
        run.turn(4, &mut history, 1);
        assert_eq!(run.cached, computed, "{kind}: nothing of the sequence is left");
    }
}
