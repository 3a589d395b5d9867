//! Randomized test of sessions (retained K/V, fork, rewind, eviction, preemption) on the toy
//! device: each answer must equal that of its whole conversation run alone, and the KV pool must
//! return to its baseline.
//!
//! `KVASIR_WORKLOADS=10000 cargo test --release -p kvasir-engine --test sessions` runs more seeds.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{CacheConfig, CacheKind, GroupKind, StateConfig, Token, WindowConfig, build};
use kvasir_sim::{Toy, ToyShape};
use kvasir_testkit::{
    Random,
    complete::{complete, complete_all, drain},
    env_number,
};
use std::collections::BTreeMap;

fn tokens(random: &mut Random, most: u64) -> Vec<Token> {
    (0..=random.below(most)).map(|_| 100 + random.below(4) as Token).collect()
}

#[derive(Default)]
struct Conversation {
    tokens: Vec<Token>,
    salt: u64,
    /// Expected rest of its running request's output; none while nothing runs.
    expected: Option<Vec<Token>>,
}

#[derive(Debug, Default)]
struct Coverage {
    turns: u64,
    retained_hits: u64,
    forks_shared: u64,
    evicted: u64,
    preempted: u64,
    accepted: u64,
    pins_shared: u64,
}

struct Harness {
    engine: Engine<Toy>,
    conversations: BTreeMap<u64, Conversation>,
    next: u64,
    random: Random,
    about: String,
    /// Retained lengths as reported by the outbox.
    reported: BTreeMap<SessionId, u32>,
    /// The policy reserves slots for all that a request may write, so only admissions evict.
    reserves: bool,
    shape: ToyShape,
    /// The tokens of pinned prefixes, with their salts.
    pins: BTreeMap<u64, (Vec<Token>, u64)>,
}

/// The first session id of pinned prefixes.
const FIRST_PIN: u64 = 1 << 32;

/// A random configuration of recurrent states.
fn states(random: &mut Random) -> StateConfig {
    StateConfig {
        live: random.between(1, 5),
        checkpoints: random.pick(&[0, 1, 3, 8, 64]),
        tail_rows: random.between(2, 5),
        interval: random.pick(&[0, 16]),
    }
}

/// The smallest window pool for four running sequences and two steps of 64 tokens in flight, so
/// that claims must evict retained sessions.
fn window_pool(window: u32, block: u32) -> WindowConfig {
    let config = WindowConfig { window, capacity: 0, longest_draft: 5 };
    let capacity = 4 * config.slots_per_sequence(block) + 2 * 64;
    WindowConfig { capacity: capacity.next_multiple_of(block), ..config }
}

/// A random engine, its description, and whether its policy reserves slots for all that a request
/// may write.
fn engine(kind: CacheKind, shape: &ToyShape, random: &mut Random) -> (Engine<Toy>, String, bool) {
    let in_blocks = kind.is_block_based();
    let block = if in_blocks { [1, 2, 4, 16][random.below(4) as usize] } else { 1 };
    let slots = if random.below(2) == 0 { 96 } else { 1024 };
    let sharing = in_blocks && random.below(2) == 0;
    let which = random.below(if in_blocks { 4 } else { 3 });
    let policy: Box<dyn Policy> = match which {
        0 => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
        1 => Box::new(Chunked::new(24, Mixing::Off)),
        2 => Box::new(Chunked::new(24, Mixing::On { target: None })),
        _ => Box::new(Rectangular::new(RectangularConfig { chunk_size: 2 * block, ..Default::default() })),
    };
    // The rectangular policy and caches of one sequence do not support window groups.
    let has_window_pools = !kind.holds_one_sequence() && which != 3 && random.chance(60);
    let windows = shape.windows.iter().filter(|_| has_window_pools);
    let config = CacheConfig {
        block_size: block,
        sharing,
        dummy: which == 3,
        max_sequences: 12,
        windows: windows.map(|window| window_pool(*window, block)).collect(),
        states: shape.state.then(|| states(random)),
        ..CacheConfig::new(slots)
    };
    let limits =
        Limits { max_num_seqs: 4, max_num_batched_tokens: 64, prefix_cache: sharing, ..Limits::default() };
    let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
    let mut now = 0;
    let clock = move || {
        now += 500;
        now
    };
    let overlap = random.below(2) == 0;
    let about = format!("{kind}, {config:?}, policy {which}, overlap {overlap}");
    let engine = Engine::new(core, Toy::new().with_shape(shape.clone()), clock).overlap(overlap);
    // The rectangular policy verifies no drafts.
    match (which, random.below(3)) {
        (3, _) | (_, 0) => (engine, about, which != 0),
        (_, 1) => (engine.draft(Box::new(NgramDrafter::new(1, 5))).unwrap(), about + ", ngram", false),
        _ => (engine.draft(Box::new(SuffixDrafter::new(5))).unwrap(), about + ", suffix", false),
    }
}

impl Harness {
    fn new(kind: CacheKind, shape: ToyShape, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (engine, about, reserves) = engine(kind, &shape, &mut random);
        let about = format!("seed {seed}: {about}");
        let (conversations, reported, pins) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { engine, conversations, next: 1, random, about, reported, reserves, shape, pins }
    }

    fn begin(&mut self, conversation: Conversation) -> u64 {
        self.next += 1;
        self.conversations.insert(self.next, conversation);
        self.next
    }

    fn pick(&mut self) -> Option<u64> {
        let idle = self.conversations.iter().filter(|(_, c)| c.expected.is_none());
        let idle: Vec<u64> = idle.map(|(key, _)| *key).collect();
        (!idle.is_empty()).then(|| idle[self.random.below(idle.len() as u64) as usize])
    }

    /// One random client action.
    fn act(&mut self, seen: &mut Coverage) {
        let picked = self.pick();
        match (self.random.below(10), picked) {
            (0, _) | (_, None) => {
                let (tokens, salt) = (tokens(&mut self.random, 30), self.random.below(2));
                self.begin(Conversation { tokens, salt, expected: None });
            }
            (1 | 2, Some(from)) => {
                let source = &self.conversations[&from];
                let (tokens, salt) = (source.tokens.clone(), source.salt);
                let at = 1 + self.random.below(tokens.len() as u64) as usize;
                let into = self.begin(Conversation { tokens: tokens[..at].to_vec(), salt, expected: None });
                let core = self.engine.core_mut();
                let got = core.fork_session(SessionId(from), SessionId(into), at as u32);
                assert!(got <= at as u32 && got == core.retained_len(SessionId(into)));
                seen.forks_shared += u64::from(got > 0);
            }
            (3, Some(key)) => {
                let conversation = self.conversations.get_mut(&key).unwrap();
                let to = 1 + self.random.below(conversation.tokens.len() as u64) as usize;
                conversation.tokens.truncate(to);
                self.engine.core_mut().rewind_session(SessionId(key), to as u32);
                assert!(self.engine.core().retained_len(SessionId(key)) as usize <= to);
            }
            (4, Some(key)) if self.random.below(3) == 0 => {
                self.engine.core_mut().end_session(SessionId(key));
                self.conversations.remove(&key);
            }
            (5, Some(key)) if self.shape.state => self.cut(key),
            (6, Some(_)) if self.shape.state => self.fork_pin(seen),
            (_, Some(key)) => self.go_on(key),
        }
    }

    /// Cuts a range out of a conversation of a recurrent model, which truncates its retained K/V.
    fn cut(&mut self, key: u64) {
        let conversation = self.conversations.get_mut(&key).unwrap();
        let len = conversation.tokens.len() as u32;
        let from = self.random.between(0, len - 1);
        let to = self.random.between(from, len);
        if to - from < len {
            conversation.tokens.drain(from as usize..to as usize);
            self.engine.core_mut().cut_session(SessionId(key), from..to);
            assert!(self.engine.core().retained_len(SessionId(key)) <= len - (to - from));
        }
    }

    /// Begins a conversation with the tokens of a pinned prefix.
    fn fork_pin(&mut self, seen: &mut Coverage) {
        let Some((&pin, (tokens, salt))) = self.pins.last_key_value() else { return };
        let (tokens, salt) = (tokens.clone(), *salt);
        let len = tokens.len() as u32;
        let into = self.begin(Conversation { tokens, salt, expected: None });
        let got = self.engine.core_mut().fork_session(SessionId(pin), SessionId(into), len);
        assert!(got <= len && got == self.engine.core().retained_len(SessionId(into)));
        seen.pins_shared += u64::from(got > 0);
    }

    fn go_on(&mut self, key: u64) {
        let more = tokens(&mut self.random, 12);
        let max_tokens = self.random.below(12) as u32;
        let conversation = self.conversations.get_mut(&key).unwrap();
        conversation.tokens.extend(more);
        conversation.tokens.truncate(80);
        let params = Params {
            max_tokens,
            eos: vec![Toy::EOS],
            salt: conversation.salt,
            session: Some(SessionId(key)),
            ..Params::default()
        };
        conversation.expected = Some(self.shape.alone(&conversation.tokens, max_tokens, false));
        let prompt = conversation.tokens.clone();
        let mut request = Request { tag: key, prompt, params };
        if self.shape.state {
            let (len, pin) = (request.prompt.len() as u32, FIRST_PIN + self.pins.len() as u64);
            request.params.marks = vec![self.random.between(0, len), len];
            let pinned = self.random.between(1, len);
            if self.random.chance(20) {
                self.pins.insert(pin, (request.prompt[..pinned as usize].to_vec(), request.params.salt));
                request.params.pins.push(Pin { session: SessionId(pin), len: pinned });
            }
        }
        self.engine.add_request(request).unwrap();
    }

    fn step(&mut self, seen: &mut Coverage) -> Turn {
        let retained = |engine: &Engine<Toy>| -> Vec<u32> {
            self.conversations.keys().map(|key| engine.core().retained_len(SessionId(*key))).collect()
        };
        let before = retained(&self.engine);
        let turn = self.engine.step().unwrap_or_else(|exit| panic!("{}: {exit}", self.about));
        self.engine.release_free_memory();
        let evicts = before.iter().zip(retained(&self.engine)).any(|(before, after)| after < *before);
        let admits = !self.engine.core().record().admitted.is_empty();
        // The number of checkpoints limits the retained sessions, and claims that lack window slots
        // evict some.
        let has_window_pools = !self.engine.core().cache().shape().windows.is_empty();
        let may_evict = admits || !self.reserves || self.shape.state || has_window_pools;
        assert!(!evicts || may_evict, "{}: a step without admissions evicts", self.about);
        assert_eq!(self.engine.executor().violations().first(), None, "{}", self.about);
        self.engine.core().check_invariants().unwrap_or_else(|why| panic!("{}: {why}", self.about));
        let outbox = self.engine.core_mut().outbox();
        for (session, len) in &outbox.retained {
            seen.evicted += u64::from(*len == 0);
            self.reported.insert(*session, *len);
        }
        let mut answered: BTreeMap<u64, Vec<Token>> = BTreeMap::new();
        for EventOutput { event, tokens, .. } in outbox.iter() {
            answered.entry(event.tag).or_default().extend(tokens);
        }
        for (tag, tokens) in answered {
            let Some(conversation) = self.conversations.get_mut(&tag) else { continue };
            let expected = conversation.expected.as_mut().unwrap();
            assert!(expected.starts_with(&tokens), "{}: {tag} says {tokens:?}, not {expected:?}", self.about);
            conversation.tokens.extend_from_slice(&tokens);
            expected.drain(..tokens.len());
        }
        for ended in outbox.ended.drain(..) {
            seen.turns += 1;
            seen.retained_hits += u64::from(ended.cached > 0);
            seen.preempted += u64::from(ended.preemptions);
            seen.accepted += u64::from(ended.accepted);
            let Some(conversation) = self.conversations.get_mut(&ended.tag) else { continue };
            let left = conversation.expected.take().unwrap();
            let whole = matches!(ended.finish, Finish::Eos | Finish::MaxTokens);
            assert!(!whole || left.is_empty(), "{}: {} stops before {left:?}", self.about, ended.tag);
            assert!(whole || ended.finish == Finish::Capacity, "{}: {:?}", self.about, ended.finish);
        }
        outbox.clear();
        turn
    }

    fn finish(mut self, seen: &mut Coverage) {
        let mut turns = 0;
        while self.step(seen) != Turn::Idle {
            turns += 1;
            let core = self.engine.core();
            assert!(
                turns < 5000,
                "{}: requests did not finish, {:?} {:?}",
                self.about,
                core.counts(),
                core.record()
            );
        }
        for (session, len) in &self.reported {
            assert_eq!(
                self.engine.core().retained_len(*session),
                *len,
                "{}: as the outbox reported it",
                self.about
            );
        }
        let keys: Vec<u64> = self.conversations.keys().chain(self.pins.keys()).copied().collect();
        keys.iter().for_each(|key| self.engine.core_mut().end_session(SessionId(*key)));
        self.engine.core().check_invariants().unwrap();
        let usage = self.engine.core().cache().usage();
        let all = self.engine.core().cache().shape().capacity;
        assert_eq!((usage.available(), usage.held, usage.leased), (all, 0, 0), "{}", self.about);
        let shape = self.engine.core().cache().shape();
        for (group, _) in shape.groups.iter().filter(|(_, kind)| matches!(kind, GroupKind::Window(_))) {
            let usage = self.engine.core().cache().usage_of(group);
            assert_eq!((usage.held, usage.leased), (0, 0), "{}", self.about);
        }
        if let (Some(group), Some(states)) = (shape.groups.states(), shape.states) {
            assert_eq!(self.engine.core().cache().usage_of(group).free, states.live, "{}", self.about);
        }
    }
}

fn run(kind: CacheKind, shape: &ToyShape, seeds: std::ops::Range<u64>) -> Coverage {
    let mut seen = Coverage::default();
    for seed in seeds {
        let mut harness = Harness::new(kind, shape.clone(), seed);
        for _ in 0..60 {
            harness.act(&mut seen);
            for _ in 0..harness.random.below(4) {
                harness.step(&mut seen);
            }
        }
        harness.finish(&mut seen);
    }
    seen
}

fn seeds() -> u64 {
    env_number("KVASIR_WORKLOADS", 150)
}

#[test]
fn turns_of_recurrent_models_equal_their_conversations_run_alone() {
    let shape = ToyShape { windows: vec![5], state: true };
    for &kind in CacheKind::ALL {
        let seen = run(kind, &shape, 0..seeds());
        println!("{kind}: {seen:?}");
        let forks = !kind.holds_one_sequence();
        assert!(seen.turns > 1000 && seen.retained_hits > if forks { 80 } else { 10 }, "{kind}: {seen:?}");
        assert_eq!((seen.forks_shared > 20, seen.pins_shared > 5), (forks, forks), "{kind}: {seen:?}");
        assert!(seen.accepted > 2, "{kind}: {seen:?}");
    }
}

#[test]
fn turns_of_window_models_equal_their_conversations_run_alone() {
    let shape = ToyShape { windows: vec![40], state: false };
    for kind in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let seen = run(kind, &shape, 0..seeds());
        println!("{kind}: {seen:?}");
        assert!(seen.turns > 1000 && seen.retained_hits > 100 && seen.evicted > 100, "{kind}: {seen:?}");
        assert!(seen.accepted > 5 && seen.forks_shared > 50, "{kind}: {seen:?}");
    }
}

#[test]
fn every_session_turn_equals_its_conversation_run_alone() {
    for &kind in CacheKind::ALL {
        let seen = run(kind, &ToyShape::default(), 0..seeds());
        println!("{kind}: {seen:?}");
        let forks = !kind.holds_one_sequence();
        // A single-sequence cache retains only the last session.
        let hits = if forks { 100 } else { 20 };
        assert!(seen.turns > 1000 && seen.retained_hits > hits && seen.evicted > 100, "{kind}: {seen:?}");
        assert!(seen.accepted > 5, "{kind}: {seen:?}");
        assert_eq!(seen.forks_shared > 100, forks, "{kind}: {seen:?}");
    }
}

fn small(kind: CacheKind, slots: u32, prefix_cache: bool) -> Engine<Toy> {
    let config = CacheConfig { block_size: 4, sharing: prefix_cache, ..CacheConfig::new(slots) };
    let limits = Limits { prefix_cache, ..Limits::default() };
    let policy = Box::new(Chunked::new(64, Mixing::Off));
    let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
    Engine::new(core, Toy::new(), || 0)
}

fn ask(prompt: &[Token], max_tokens: u32, session: Option<u64>, salt: u64) -> Request {
    let session = session.map(SessionId);
    let params = Params { max_tokens, session, salt, ..Params::default() };
    Request { tag: 1, prompt: prompt.to_vec(), params }
}

fn cached(engine: &mut Engine<Toy>, request: Request) -> u32 {
    let done = complete(engine, request);
    done.summary.cached
}

#[test]
fn forked_sessions_hold_their_trunk_once() {
    let trunk: Vec<Token> = (0..40).map(|i| 100 + i % 7).collect();
    for kind in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let mut engine = small(kind, 256, false);
        assert_eq!(cached(&mut engine, ask(&trunk, 0, Some(1), 0)), 0);
        let alone = engine.core().cache().usage().held;
        assert_eq!(alone, 40, "{kind}");
        for branch in 2..10 {
            assert_eq!(engine.core_mut().fork_session(SessionId(1), SessionId(branch), 40), 40, "{kind}");
        }
        assert_eq!(engine.core().cache().usage().held, alone, "{kind}: no branch takes a slot");
        let requests = (2..10).map(|branch| {
            let mut prompt = trunk.clone();
            prompt.extend([branch as Token; 4]);
            ask(&prompt, 3, Some(branch), 0)
        });
        for done in complete_all(&mut engine, requests.collect()) {
            assert_eq!(done.unwrap().summary.cached, 40, "{kind}");
        }
    }
}

#[test]
fn retained_sessions_are_evicted_before_requests_wait() {
    let mut engine = small(CacheKind::Paged, 64, false);
    assert_eq!(cached(&mut engine, ask(&[5; 40], 0, Some(1), 0)), 0);
    assert_eq!(engine.core().retained_len(SessionId(1)), 40);
    assert_eq!(cached(&mut engine, ask(&[6; 40], 0, Some(2), 0)), 0);
    assert_eq!(engine.core().retained_len(SessionId(1)), 0, "the older one was evicted");
    assert_eq!(engine.core().retained_len(SessionId(2)), 40);
    // The conversation survives the eviction: the same tokens give the same answer.
    let answer = complete(&mut engine, ask(&[5; 40], 8, Some(1), 0));
    assert_eq!(answer.tokens, Toy::alone(&[5; 40], 8, true));
}

#[test]
fn sessions_of_another_salt_reuse_nothing() {
    let mut engine = small(CacheKind::Paged, 64, false);
    cached(&mut engine, ask(&[5; 16], 0, Some(1), 2));
    assert_eq!(cached(&mut engine, ask(&[5; 20], 0, Some(1), 3)), 0);
    assert_eq!(cached(&mut engine, ask(&[5; 24], 0, Some(1), 3)), 20);
}

#[test]
fn prefixes_are_shared_only_within_a_tenant() {
    let mut engine = small(CacheKind::Radix, 64, true);
    assert_eq!(cached(&mut engine, ask(&[5; 16], 1, None, 7)), 0);
    assert_eq!(cached(&mut engine, ask(&[5; 16], 1, None, 0)), 0, "of another tenant");
    assert_eq!(cached(&mut engine, ask(&[5; 16], 1, None, 7)), 12);
}

#[test]
fn ended_sessions_retain_nothing() {
    let mut engine = small(CacheKind::Cells, 64, false);
    engine.add_request(ask(&[5; 8], 6, Some(1), 0)).unwrap();
    engine.step().unwrap();
    engine.core_mut().end_session(SessionId(1));
    drain(&mut engine);
    assert_eq!((engine.core().retained_len(SessionId(1)), engine.core().cache().usage().held), (0, 0));
}
