//! Model-based test of caches with recurrent states: random operations on all five kinds, on a
//! device whose states are digests of what they cover. Every step must read a state of exactly the
//! tokens that its sequence has. `conversation.rs` checks what is reused.
//!
//! `KVASIR_SEEDS=10000` runs more seeds.

#![allow(clippy::unwrap_used, clippy::panic)]

mod conversation;
mod device;

use device::{Expected, State, StateDevice};
use kvasir_kv::{
    Cache, CacheConfig, CacheError, CacheKind, ClaimRow, GroupKind, Lookup, Plan, Position, SeqId,
    StateConfig, StateCosts, StepId, Token, build,
};
use kvasir_testkit::Random;
use std::collections::{BTreeMap, VecDeque};

/// One sequence, as the cache should have it.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Claimed tokens.
    tokens: Vec<Token>,
    /// Tokens that it begins with, fed before random ones.
    prompt: Vec<Token>,
    salt: u64,
    family: u32,
    /// Positions at which a checkpoint was due, of steps of this sequence or of the one that it was
    /// forked from.
    due: Vec<Position>,
    /// Tokens that steps have committed: all but drafts that were not replayed yet.
    committed: Position,
    /// Marks that no step has passed yet.
    marks: Vec<Position>,
}

impl Model {
    fn end(&self) -> Position {
        self.tokens.len() as Position
    }

    fn truncate(&mut self, to: Position) {
        self.tokens.truncate(to as usize);
        self.committed = self.committed.min(to);
        self.due.retain(|at| *at <= to);
        self.marks.clear();
    }
}

struct Claimed {
    step: StepId,
    /// Sequence, length and committed tokens before the claim, tokens fed, drafts among them.
    rows: Vec<(SeqId, Model, u32, u32)>,
}

struct Run {
    cache: Box<dyn Cache>,
    kind: CacheKind,
    config: StateConfig,
    block: u32,
    random: Random,
    device: StateDevice,
    seqs: BTreeMap<SeqId, Model>,
    claimed: VecDeque<Claimed>,
    step: u64,
    families: u32,
    /// Whether no checkpoint is evicted, so that every one that is due exists.
    is_ample: bool,
    hits: u32,
    refused: u32,
    shortened: u32,
}

impl Run {
    fn new(kind: CacheKind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let block = if kind.is_block_based() { random.pick(&[1, 2, 4, 16]) } else { 1 };
        let is_ample = random.chance(40);
        let live = if kind.holds_one_sequence() { 1 } else { random.between(1, 5) };
        let config = StateConfig {
            live,
            checkpoints: if is_ample { 4000 } else { random.between(0, 9) },
            tail_rows: 4,
            interval: random.pick(&[0, 5, 8, 32]),
        };
        let capacity = random.pick(&[64, 160, 800]);
        let states = Some(config);
        let dummy = kind.is_block_based() && random.chance(30);
        let config_of_cache =
            CacheConfig { block_size: block, max_sequences: 8, dummy, states, ..CacheConfig::new(capacity) };
        let cache = build(kind, &config_of_cache).unwrap();
        let group = cache.shape().groups.states().unwrap();
        assert!(cache.shape().groups.iter().any(|(id, kind)| id == group && kind == GroupKind::State));
        Self {
            cache,
            kind,
            config,
            block,
            random,
            device: StateDevice::new(config.slots(), live),
            seqs: BTreeMap::new(),
            claimed: VecDeque::new(),
            step: 0,
            families: 0,
            is_ample,
            hits: 0,
            refused: 0,
            shortened: 0,
        }
    }

    fn below(&mut self, n: u32) -> u32 {
        self.random.below(u64::from(n.max(1))) as u32
    }

    fn any(&mut self) -> Option<SeqId> {
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        (!live.is_empty()).then(|| self.random.pick(&live))
    }

    fn interval(&self) -> u32 {
        self.config.interval.next_multiple_of(self.block)
    }

    fn prompt(&mut self) -> Vec<Token> {
        let (stem, len) = (self.below(3), 1 + self.below(5 * self.block + 20));
        let cut = if self.random.chance(60) { len } else { self.below(len + 1) };
        (0..len).map(|i| if i < cut { stem * 7 + i % 5 } else { self.below(2) + 90 }).collect()
    }

    fn operate(&mut self) {
        let operation = self.below(100);
        match operation {
            0..14 => self.open(),
            14..24 => self.close(),
            24..52 => self.claim(),
            52..70 => self.retire(),
            70..77 => self.publish(),
            77..83 => self.rewind(),
            83..86 => self.fork(),
            86..89 => self.copy(),
            89..91 => self.remove(),
            91 => self.keep(),
            92..96 => self.mark(),
            96 => _ = self.cache.prefix().map(|prefix| prefix.evict(3 * self.block)),
            97 => self.cache.set_costs(StateCosts { token: 1 + operation % 3, depth: 7 }),
            _ => _ = self.cache.compact(),
        }
        if self.claimed.len() > 3 {
            self.retire();
        }
        self.cache.check().unwrap_or_else(|error| panic!("after operation {operation}: {error}"));
        for (&seq, model) in &self.seqs {
            assert_eq!(self.cache.next_position(seq), Ok(model.end()));
        }
    }

    fn open(&mut self) {
        let Ok(seq) = self.cache.open() else { return };
        self.families += 1;
        let mut model = Model { family: self.families, ..Model::default() };
        let prompt = self.prompt();
        model.prompt.clone_from(&prompt);
        if self.cache.prefix().is_ok() && self.random.chance(70) {
            model.salt = u64::from(self.below(4) / 3);
            let limit = if self.random.chance(20) { self.below(40) } else { u32::MAX };
            let prefix = self.cache.prefix().unwrap();
            let found = prefix.lookup(&prompt, model.salt);
            let lookup = if limit % 2 == 0 { Lookup::default() } else { found.lookup };
            let hit = prefix.attach(seq, &prompt, model.salt, limit, lookup).unwrap();
            assert!(hit.tokens <= found.tokens && hit.tokens < prompt.len() as u32);
            assert!(hit.tokens == found.tokens || limit < found.tokens);
            assert!(hit.evictable <= hit.tokens);
            model.tokens = prompt[..hit.tokens as usize].to_vec();
            model.committed = hit.tokens;
            self.hits += hit.tokens;
        }
        self.seqs.insert(seq, model);
    }

    fn close(&mut self) {
        let Some(seq) = self.any() else { return };
        if self.random.chance(60) {
            self.publish_sequence(seq);
        }
        self.cache.close(seq).unwrap();
        self.seqs.remove(&seq);
    }

    fn claim(&mut self) {
        let mut rows = Vec::new();
        for seq in self.seqs.keys().copied().collect::<Vec<_>>() {
            if self.kind.holds_one_sequence() || self.random.chance(50) {
                let long = self.random.chance(30);
                let tokens = 1 + if long { self.below(3 * self.block + 20) } else { self.below(2) };
                let drafts = if self.random.chance(30) { self.below(4).min(tokens - 1) } else { 0 };
                rows.push(ClaimRow { drafts, ..ClaimRow::new(seq, tokens) });
            }
        }
        if rows.is_empty() {
            return;
        }
        self.step += 1;
        let step = StepId(self.step);
        let usages = |cache: &dyn Cache| {
            let group = cache.shape().groups.states().unwrap();
            (cache.usage(), cache.usage_of(group), cache.generation())
        };
        let before = usages(&*self.cache);
        match self.cache.claim(step, &rows) {
            Ok(()) => {}
            Err(CacheError::Full { needed, available, .. }) => {
                assert!(needed > available);
                assert_eq!(usages(&*self.cache), before, "a refused claim changed something");
                self.refused += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let mut claimed = Vec::new();
        let mut expected = Vec::new();
        for row in &rows {
            let generated: Vec<Token> = (0..row.tokens).map(|_| self.below(2) + 90).collect();
            let interval = self.interval();
            let model = self.seqs.get_mut(&row.seq).unwrap();
            claimed.push((row.seq, model.clone(), row.tokens, row.drafts));
            let prompt = model.prompt.iter().skip(model.tokens.len());
            let tokens = prompt.chain(&generated).take(row.tokens as usize);
            model.tokens.extend(tokens.copied().collect::<Vec<_>>());
            let (from, to) = (model.committed, model.end() - row.drafts);
            let marks = std::mem::take(&mut model.marks);
            let (passed, ahead) = marks.into_iter().partition::<Vec<_>, _>(|at| *at <= to);
            model.marks = ahead;
            let regular = (from + 1..=to).filter(|at| interval > 0 && at.is_multiple_of(interval));
            model.due.extend(passed.into_iter().filter(|at| *at > from).chain(regular));
            model.due.sort_unstable();
            model.committed = to;
            let tokens = model.tokens.clone();
            expected.push(Expected { tokens, fed: row.tokens, drafts: row.drafts });
        }
        let claimed = Claimed { step, rows: claimed };
        let mut plan = Plan::default();
        self.cache.plan(step, &mut plan).unwrap();
        let mut again = Plan::default();
        self.cache.plan(step, &mut again).unwrap();
        assert_eq!(plan.states, again.states, "planning only reads");
        if self.random.chance(12) {
            self.cache.cancel(step).unwrap();
            for (seq, model, ..) in claimed.rows {
                // Marks that the step passed are forgotten or stay: both are right.
                self.seqs.insert(seq, Model { marks: Vec::new(), ..model });
            }
            return;
        }
        self.device.submit(&plan, expected);
        self.claimed.push_back(claimed);
    }

    fn retire(&mut self) {
        let Some(claimed) = self.claimed.pop_front() else { return };
        self.device.run();
        self.cache.retire(claimed.step).unwrap();
        for (seq, before, tokens, drafts) in claimed.rows {
            // A verified chain: some of the drafts are accepted, unless more was claimed since.
            let end = before.end() + tokens;
            let is_newest = self.seqs.get(&seq).is_some_and(|model| model.end() == end);
            let in_flight = self.claimed.iter().any(|claimed| claimed.rows.iter().any(|row| row.0 == seq));
            if drafts > 0 && is_newest && !in_flight {
                let to = end - self.below(drafts + 1);
                assert_eq!(self.cache.rewind().unwrap().rewind_floor(seq, to), Ok(to), "drafts are replayed");
                self.cache.rewind().unwrap().rewind_to(seq, to).unwrap();
                let model = self.seqs.get_mut(&seq).unwrap();
                model.tokens.truncate(to as usize);
            }
        }
    }

    fn publish(&mut self) {
        let Some(seq) = self.any() else { return };
        self.publish_sequence(seq);
    }

    fn publish_sequence(&mut self, seq: SeqId) {
        let tokens = self.seqs[&seq].tokens.clone();
        let computed = self.cache.len(seq).unwrap();
        if let Ok(prefix) = self.cache.prefix() {
            prefix.publish(seq, &tokens, computed).unwrap();
        }
    }

    /// The floor of a truncation, checked against the checkpoints that must exist.
    fn floor(&mut self, seq: SeqId, to: Position) -> Position {
        let floor = self.cache.rewind().unwrap().rewind_floor(seq, to).unwrap();
        let model = &self.seqs[&seq];
        assert!(floor <= to);
        if self.is_ample {
            let due = model.due.iter().rev().find(|at| **at <= to.min(model.committed));
            assert!(due.is_none_or(|due| floor >= *due), "{due:?} is due, the floor of {to} is {floor}");
        }
        floor
    }

    fn rewind(&mut self) {
        let Some(seq) = self.any() else { return };
        let to = self.random.between(0, self.seqs[&seq].end());
        let floor = self.floor(seq, to);
        let result = self.cache.rewind().unwrap().rewind_to(seq, to);
        if floor < to {
            assert_eq!(result, Err(CacheError::NoCheckpoint { to, nearest: floor }));
            if self.random.chance(50) {
                return;
            }
            self.cache.rewind().unwrap().rewind_to(seq, floor).unwrap();
            self.shortened += 1;
        } else {
            result.unwrap();
        }
        self.seqs.get_mut(&seq).unwrap().truncate(floor);
    }

    /// A copy of the first retired tokens of a sequence has a state where it ends.
    fn copied(&mut self, src: SeqId, dst: SeqId, upto: Position) {
        let len = self.cache.claimed_len(dst).unwrap();
        let source = self.seqs[&src].clone();
        assert!(len <= upto);
        let due = source.due.iter().rev().find(|at| **at <= upto.min(source.committed));
        assert!(!self.is_ample || due.is_none_or(|due| len >= *due), "{due:?}, {len} of {upto} copied");
        let mut model = source;
        model.truncate(len);
        self.seqs.insert(dst, model);
    }

    fn fork(&mut self) {
        let Some(seq) = self.any() else { return };
        let (n, upto) = (self.below(3), self.cache.len(seq).unwrap());
        let Ok(sequences) = self.cache.sequences() else { return };
        match sequences.fork(seq, n) {
            Ok(forks) => forks.into_iter().for_each(|fork| self.copied(seq, fork, upto)),
            Err(CacheError::Full { .. } | CacheError::TooManySequences) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn copy(&mut self) {
        let (Some(src), Some(dst)) = (self.any(), self.any()) else { return };
        let len = self.cache.len(src).unwrap();
        let from = if self.random.chance(20) { self.below(len) } else { 0 };
        let to = if self.random.chance(50) { Position::MAX } else { from + self.below(40) };
        let Ok(sequences) = self.cache.sequences() else { return };
        let (upto, before) = (to.min(len), self.seqs[&dst].clone());
        match sequences.copy(src, dst, from..to) {
            Ok(()) if from >= upto => assert_eq!(self.cache.claimed_len(dst), Ok(before.end())),
            Ok(()) => {
                assert_eq!((from, before.end()), (0, 0));
                self.copied(src, dst, upto);
            }
            Err(CacheError::NoCheckpoint { .. }) => assert!(from > 0),
            Err(CacheError::NothingToCopy) => assert_eq!(len, 0),
            Err(_) => {}
        }
        assert_eq!(self.cache.next_position(dst), Ok(self.seqs[&dst].end()));
    }

    fn remove(&mut self) {
        let Some(seq) = self.any() else { return };
        let end = self.seqs[&seq].end();
        let (from, to) = (self.below(end + 1), self.below(end + 9));
        if self.cache.sequences().is_err() {
            return;
        }
        let floor = self.floor(seq, from);
        match self.cache.sequences().unwrap().remove(seq, from..to) {
            Ok(()) if from >= to || from >= end => {}
            Ok(()) => {
                assert!(to >= end && floor == from);
                self.seqs.get_mut(&seq).unwrap().truncate(from);
            }
            Err(error) => {
                assert_eq!(error, CacheError::NoCheckpoint { to: from, nearest: floor });
                assert!(to < end || floor < from);
            }
        }
    }

    fn keep(&mut self) {
        let Some(seq) = self.any() else { return };
        let Ok(sequences) = self.cache.sequences() else { return };
        sequences.keep(seq).unwrap();
        let gone: Vec<SeqId> = self.seqs.keys().copied().filter(|id| self.cache.len(*id).is_err()).collect();
        let family = self.seqs[&seq].family;
        gone.iter().for_each(|id| assert_eq!(self.seqs.remove(id).unwrap().family, family));
    }

    fn mark(&mut self) {
        let Some(seq) = self.any() else { return };
        let at = self.seqs[&seq].end() + self.below(30);
        self.cache.mark(seq, &[at]).unwrap();
        let at = at / self.block * self.block;
        let model = self.seqs.get_mut(&seq).unwrap();
        if at > model.committed {
            model.marks.push(at);
        }
    }

    /// Retires and closes everything: all pools are as they were at the beginning.
    fn finish(&mut self) {
        while !self.claimed.is_empty() {
            self.retire();
        }
        for seq in self.seqs.keys().copied().collect::<Vec<_>>() {
            self.cache.close(seq).unwrap();
        }
        if let Ok(prefix) = self.cache.prefix() {
            prefix.evict(u32::MAX).unwrap();
        }
        self.cache.check().unwrap();
        let group = self.cache.shape().groups.states().unwrap();
        assert_eq!(self.cache.usage().free, self.cache.shape().capacity);
        assert_eq!(self.cache.usage_of(group).free, self.config.live);
    }
}

fn runs(kind: CacheKind) -> [u32; 5] {
    let seeds: u64 = std::env::var("KVASIR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut totals = [0; 5];
    for seed in 1..=seeds {
        let run = std::panic::catch_unwind(|| {
            let mut run = Run::new(kind, seed);
            (0..200).for_each(|_| run.operate());
            run.finish();
            [run.hits, run.refused, run.shortened, run.device.saves, run.device.replayed]
        });
        match run {
            Ok(counts) => totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count),
            Err(cause) => {
                eprintln!("{kind}: seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    let [_, refused, shortened, saves, replayed] = totals;
    assert!(refused > 10 && shortened > 10 && saves > 100 && replayed > 100, "{kind}: {totals:?}");
    totals
}

#[test]
fn contiguous_steps_read_states_of_their_own_tokens() {
    runs(CacheKind::Contiguous);
}

#[test]
fn tree_steps_read_states_of_their_own_tokens() {
    runs(CacheKind::Tree);
}

#[test]
fn cells_steps_read_states_of_their_own_tokens() {
    runs(CacheKind::Cells);
}

#[test]
fn paged_steps_read_states_of_their_own_tokens() {
    let [hits, ..] = runs(CacheKind::Paged);
    assert!(hits > 1000, "{hits}");
}

#[test]
fn radix_steps_read_states_of_their_own_tokens() {
    let [hits, ..] = runs(CacheKind::Radix);
    assert!(hits > 1000, "{hits}");
}

#[test]
fn a_state_covers_tokens_in_order() {
    assert_ne!(State::of(&[1, 2]), State::of(&[2, 1]));
    assert_eq!(State::of(&[1, 2]), State::of(&[1]).after(2));
}
