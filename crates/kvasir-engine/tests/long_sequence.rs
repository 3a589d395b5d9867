//! A sequence of 100,000 tokens with 200 checkpoints, forks and rewinds in the engine: every answer
//! equals the one computed from its prompt alone, and every pool is free at the end.
//!
//! The device computes recurrent states only: the toy device reads all earlier rows for each token,
//! which takes quadratic time.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{Abilities, Executor, OutputRow, PoolRow, Ran, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::{CacheConfig, CacheKind, PoolId, Position, Slot, Span, StateConfig, StateRow, Token, build};
use kvasir_testkit::Random;
use kvasir_testkit::complete::complete;

const STATES: StateConfig = StateConfig { live: 3, checkpoints: 200, tail_rows: 0, interval: 512 };
/// KV slots.
const SLOTS: u32 = 1 << 18;
/// Tokens of the sequence.
const LENGTH: usize = 100_000;
/// Output tokens per request.
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
    /// The last sampled token by pool row, for inputs that are `IN_FLIGHT`.
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
        // All reads precede all writes: no row may read what another row of the step writes.
        let initial: Vec<State> = plan.states.rows.iter().map(|row| self.read(row)).collect();
        for ((row, planned), mut state) in batch.rows.iter().zip(&plan.states.rows).zip(initial) {
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
                    let saved = saves.iter().filter(|save| save.after == after).map(|save| save.slot);
                    let live = (planned.commit == after).then_some(planned.to);
                    saved.chain(live).for_each(|slot: Slot| self.slots[slot as usize] = Some(state));
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

/// An engine, and coverage counters of the test.
struct Run {
    engine: Engine<StateDevice>,
    random: Random,
    forks: u32,
    rewinds: u32,
    /// Prompt tokens of all requests.
    prompt_tokens: u64,
    /// Prompt tokens that were cached.
    cached_tokens: u64,
}

impl Run {
    fn new(kind: CacheKind) -> Self {
        let block_size = if kind.is_block_based() { 16 } else { 1 };
        let config = CacheConfig { block_size, states: Some(STATES), ..CacheConfig::new(SLOTS) };
        let policy = Box::new(Chunked::new(1024, Mixing::On { target: None }));
        let limits = Limits { max_model_len: 1 << 19, ..Limits::default() };
        let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
        let slots = vec![None; STATES.slots() as usize];
        let device = StateDevice { slots, newest: vec![0; 64] };
        let engine = Engine::new(core, device, || 0);
        let random = Random::new(5);
        Self { engine, random, forks: 0, rewinds: 0, prompt_tokens: 0, cached_tokens: 0 }
    }

    /// Appends a message of `message_len` random tokens and its answer to a conversation.
    fn turn(&mut self, session: u64, history: &mut Vec<Token>, message_len: u32) {
        history.extend((0..message_len).map(|_| self.random.between(0, 90_000)));
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
        self.prompt_tokens += history.len() as u64;
        self.cached_tokens += u64::from(done.summary.cached);
        history.extend(done.tokens);
        self.engine.core().check_invariants().unwrap();
    }

    /// Forks the conversation at a random length, and runs a turn of the fork.
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
            let message_len = run.random.between(200, 5000);
            run.turn(1, &mut history, message_len);
            if run.random.chance(40) {
                run.fork(&history);
            }
            if run.random.chance(25) {
                run.rewind(&mut history);
            }
        }
        let Run { forks, rewinds, prompt_tokens, cached_tokens, .. } = run;
        assert!(forks > 5 && rewinds > 5, "{kind}: {forks} forks, {rewinds} rewinds");
        assert!(
            cached_tokens * 10 > prompt_tokens * 8,
            "{kind}: {cached_tokens} of {prompt_tokens} prompt tokens were cached"
        );
        run.engine.core_mut().end_session(SessionId(1));
        let cache = run.engine.core().cache();
        cache.check().unwrap();
        let (shape, group) = (cache.shape(), cache.shape().groups.states().unwrap());
        assert_eq!(cache.usage_of(group).free, STATES.live, "{kind}: live states");
        let usage = cache.usage();
        assert_eq!((usage.held, usage.leased), (0, 0), "{kind}: K/V slots");
        assert_eq!(usage.free + usage.evictable, shape.capacity, "{kind}: K/V slots");
        // A request that takes almost all slots evicts the prefix cache and the last checkpoints.
        let mut long_prompt = Vec::new();
        run.turn(3, &mut long_prompt, SLOTS - 64);
        run.engine.core_mut().end_session(SessionId(3));
        history.truncate(LENGTH);
        let cached_before = run.cached_tokens;
        run.turn(4, &mut history, 1);
        assert_eq!(run.cached_tokens, cached_before, "{kind}: a part of the sequence is still cached");
    }
}
