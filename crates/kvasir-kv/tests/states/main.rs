//! Model-based test of caches with recurrent states: random operations on all five kinds, with a
//! device whose states are digests of the tokens that they cover. Every step must read the state of
//! exactly the tokens of its sequence. `conversation.rs` tests prefix hits.
//!
//! `KVASIR_SEEDS=10000` runs more seeds.

#![allow(clippy::unwrap_used, clippy::panic)]

mod conversation;
mod device;
mod idle;
mod mirror;
mod model;

use device::{Expected, StateDevice};
use kvasir_kv::{
    Cache, CacheConfig, CacheError, CacheKind, ClaimRow, GroupKind, Lookup, Plan, Position, RecomputeCosts,
    SeqId, StateConfig, StepId, Token, build,
};
use kvasir_testkit::{Random, env_number};
use mirror::Mirror;
use model::{ClaimedRow, ClaimedStep, Model};
use std::collections::{BTreeMap, VecDeque};

/// A cache under random operations, with its model and device.
struct Simulation {
    cache: Box<dyn Cache>,
    kind: CacheKind,
    config: StateConfig,
    block: u32,
    random: Random,
    device: StateDevice,
    /// A mirror of the cache, if KV events are recorded.
    mirror: Option<Mirror>,
    seqs: BTreeMap<SeqId, Model>,
    claimed: VecDeque<ClaimedStep>,
    step: u64,
    families: u32,
    /// Whether the pool is so large that no checkpoint is evicted: every one that is due exists.
    is_ample: bool,
    /// Number of tokens in prefix hits.
    hits: u32,
    /// Number of tokens in the hits that the mirror has predicted.
    mirrored_hits: u32,
    /// Number of operations that failed for lack of slots or sequences.
    refused: u32,
    /// Number of rewinds to a floor below their target.
    shortened: u32,
}

impl Simulation {
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
        let cache_config =
            CacheConfig { block_size: block, max_sequences: 8, dummy, states, ..CacheConfig::new(capacity) };
        let mut cache = build(kind, &cache_config).unwrap();
        let mirror = random.chance(50) && cache.prefix().is_ok_and(|prefix| prefix.record_events().is_ok());
        let group = cache.shape().groups.states().unwrap();
        assert!(cache.shape().groups.iter().any(|(id, kind)| id == group && kind == GroupKind::State));
        Self {
            cache,
            kind,
            config,
            block,
            random,
            device: StateDevice::new(config.slots(), live),
            mirror: mirror.then(Mirror::default),
            seqs: BTreeMap::new(),
            claimed: VecDeque::new(),
            step: 0,
            families: 0,
            is_ample,
            hits: 0,
            mirrored_hits: 0,
            refused: 0,
            shortened: 0,
        }
    }

    fn below(&mut self, n: u32) -> u32 {
        self.random.below(u64::from(n.max(1))) as u32
    }

    fn random_sequence(&mut self) -> Option<SeqId> {
        let open: Vec<SeqId> = self.seqs.keys().copied().collect();
        (!open.is_empty()).then(|| self.random.pick(&open))
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
            77..82 => self.rewind(),
            82 => self.rewind_to_checkpoints(),
            83..86 => self.fork(),
            86..89 => self.copy(),
            89..91 => self.remove(),
            91 => self.keep(),
            92..96 => self.mark(),
            96 => _ = self.cache.prefix().map(|prefix| prefix.evict(3 * self.block)),
            97 => {
                let token = 1 + self.below(3);
                self.cache.set_recompute_costs(RecomputeCosts { token, depth: 7 });
            }
            _ => _ = self.cache.compact(),
        }
        if self.claimed.len() > 3 {
            self.retire();
        }
        self.cache.check().unwrap_or_else(|error| panic!("after operation {operation}: {error}"));
        for (&seq, model) in &self.seqs {
            assert_eq!(self.cache.next_position(seq), Ok(model.end()));
        }
        if operation.is_multiple_of(4) {
            self.compare_mirror();
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
            assert!(hit.evictable[0] <= hit.tokens);
            model.tokens = prompt[..hit.tokens as usize].to_vec();
            model.committed = hit.tokens;
            self.hits += hit.tokens;
        }
        self.seqs.insert(seq, model);
    }

    fn close(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
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
            let (row, input) = self.extend_model(row);
            claimed.push(row);
            expected.push(input);
        }
        let claimed = ClaimedStep { step, rows: claimed };
        let mut plan = Plan::default();
        self.cache.plan(step, &mut plan).unwrap();
        let mut again = Plan::default();
        self.cache.plan(step, &mut again).unwrap();
        assert_eq!(plan.states, again.states, "plan changed the claimed step");
        if self.random.chance(12) {
            self.cache.cancel(step).unwrap();
            for row in claimed.rows {
                // The cache may keep or forget marks that the step reached, so none is checked.
                self.seqs.insert(row.seq, Model { marks: Vec::new(), ..row.before });
            }
            return;
        }
        self.device.submit(&plan, expected);
        self.claimed.push_back(claimed);
    }

    /// Adds a claimed row to the model of its sequence.
    fn extend_model(&mut self, row: &ClaimRow) -> (ClaimedRow, Expected) {
        let ClaimRow { seq, tokens: fed, drafts, .. } = *row;
        let generated: Vec<Token> = (0..fed).map(|_| self.below(2) + 90).collect();
        let interval = self.interval();
        let model = self.seqs.get_mut(&seq).unwrap();
        let before = model.clone();
        let prompt = model.prompt.iter().skip(model.tokens.len());
        let tokens = prompt.chain(&generated).take(fed as usize);
        model.tokens.extend(tokens.copied().collect::<Vec<_>>());
        let (from, to) = (model.committed, model.end() - drafts);
        let marks = std::mem::take(&mut model.marks);
        let (reached, ahead) = marks.into_iter().partition::<Vec<_>, _>(|at| *at <= to);
        model.marks = ahead;
        let regular = (from + 1..=to).filter(|at| interval > 0 && at.is_multiple_of(interval));
        model.due.extend(reached.into_iter().filter(|at| *at > from).chain(regular));
        model.due.sort_unstable();
        model.committed = to;
        let expected = Expected { tokens: model.tokens.clone(), fed, drafts };
        (ClaimedRow { seq, before, tokens: fed, drafts }, expected)
    }

    fn retire(&mut self) {
        let Some(claimed) = self.claimed.pop_front() else { return };
        self.device.run();
        self.cache.retire(claimed.step).unwrap();
        for ClaimedRow { seq, before, tokens, drafts } in claimed.rows {
            // Draft verification accepts a random number of drafts, unless more was claimed since.
            let end = before.end() + tokens;
            let is_newest = self.seqs.get(&seq).is_some_and(|model| model.end() == end);
            let in_flight = self.claimed.iter().any(|claimed| claimed.rows.iter().any(|row| row.seq == seq));
            if drafts > 0 && is_newest && !in_flight {
                let to = end - self.below(drafts + 1);
                assert_eq!(
                    self.cache.rewind().unwrap().rewind_floor(seq, to),
                    Ok(to),
                    "a rewind to accepted drafts needs no checkpoint"
                );
                self.cache.rewind().unwrap().rewind_to(seq, to).unwrap();
                let model = self.seqs.get_mut(&seq).unwrap();
                model.tokens.truncate(to as usize);
            }
        }
    }

    fn publish(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        self.publish_sequence(seq);
    }

    fn publish_sequence(&mut self, seq: SeqId) {
        let tokens = self.seqs[&seq].tokens.clone();
        let computed = self.cache.len(seq).unwrap();
        if let Ok(prefix) = self.cache.prefix() {
            prefix.publish(seq, &tokens, computed).unwrap();
        }
    }

    /// The rewind floor, checked against the checkpoints that must exist.
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
        let Some(seq) = self.random_sequence() else { return };
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

    /// Adds the model of `dst`, which the cache has made a copy of `src` up to at most `upto`.
    /// Checks that the copy ends at or after the last checkpoint that must exist.
    fn record_copy(&mut self, src: SeqId, dst: SeqId, upto: Position) {
        let len = self.cache.claimed_len(dst).unwrap();
        assert!(len <= upto);
        let due = self.last_written(src, upto);
        assert!(!self.is_ample || due.is_none_or(|due| len >= due), "{due:?}, {len} of {upto} copied");
        let mut model = self.seqs[&src].clone();
        model.truncate(len);
        self.seqs.insert(dst, model);
    }

    fn fork(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let (n, upto) = (self.below(3), self.cache.len(seq).unwrap());
        let Ok(sequences) = self.cache.sequences() else { return };
        match sequences.fork(seq, n) {
            Ok(forks) => forks.into_iter().for_each(|fork| self.record_copy(seq, fork, upto)),
            Err(CacheError::Full { .. } | CacheError::TooManySequences) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn copy(&mut self) {
        let (Some(src), Some(dst)) = (self.random_sequence(), self.random_sequence()) else { return };
        let len = self.cache.len(src).unwrap();
        let from = if self.random.chance(20) { self.below(len) } else { 0 };
        let to = if self.random.chance(50) { Position::MAX } else { from + self.below(40) };
        let Ok(sequences) = self.cache.sequences() else { return };
        let (upto, before) = (to.min(len), self.seqs[&dst].clone());
        match sequences.copy(src, dst, from..to) {
            Ok(()) if from >= upto => assert_eq!(self.cache.claimed_len(dst), Ok(before.end())),
            Ok(()) => {
                assert_eq!((from, before.end()), (0, 0));
                self.record_copy(src, dst, upto);
            }
            Err(CacheError::NoCheckpoint { .. }) => assert!(from > 0),
            Err(CacheError::NothingToCopy) => assert_eq!(len, 0),
            Err(CacheError::CopyOverlaps) => assert!(before.end() > 0),
            // The destination has a claimed step.
            Err(CacheError::InFlight) => {}
            Err(CacheError::Full { .. }) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert_eq!(self.cache.next_position(dst), Ok(self.seqs[&dst].end()));
    }

    fn remove(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
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
        let Some(seq) = self.random_sequence() else { return };
        let Ok(sequences) = self.cache.sequences() else { return };
        sequences.keep(seq).unwrap();
        let closed: Vec<SeqId> =
            self.seqs.keys().copied().filter(|id| self.cache.len(*id).is_err()).collect();
        let family = self.seqs[&seq].family;
        closed.iter().for_each(|id| assert_eq!(self.seqs.remove(id).unwrap().family, family));
    }

    fn mark(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let at = self.seqs[&seq].end() + self.below(30);
        self.cache.mark_checkpoints(seq, &[at]).unwrap();
        let at = at / self.block * self.block;
        let model = self.seqs.get_mut(&seq).unwrap();
        if at > model.committed {
            model.marks.push(at);
        }
    }

    /// Retires all steps and closes all sequences. All slots and states must be free then.
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

/// Totals of all seeds.
#[derive(Debug, Default)]
struct Totals {
    hits: u32,
    mirrored_hits: u32,
    refused: u32,
    shortened: u32,
    saves: u32,
    replayed: u32,
}

/// Runs random operations on a cache of this kind, for many seeds.
fn run_seeds(kind: CacheKind) -> Totals {
    let seeds = env_number("KVASIR_SEEDS", 300);
    let mut totals = Totals::default();
    for seed in 1..=seeds {
        let run = std::panic::catch_unwind(|| {
            let mut run = Simulation::new(kind, seed);
            (0..200).for_each(|_| run.operate());
            run.finish();
            run
        });
        match run {
            Ok(run) => {
                totals.hits += run.hits;
                totals.mirrored_hits += run.mirrored_hits;
                totals.refused += run.refused;
                totals.shortened += run.shortened;
                totals.saves += run.device.saves;
                totals.replayed += run.device.replayed;
            }
            Err(cause) => {
                eprintln!("{kind}: seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    let Totals { refused, shortened, saves, replayed, .. } = totals;
    assert!(refused > 10 && shortened > 10 && saves > 100 && replayed > 100, "{kind}: {totals:?}");
    totals
}

#[test]
fn contiguous_steps_read_the_state_of_their_own_tokens() {
    run_seeds(CacheKind::Contiguous);
}

#[test]
fn tree_steps_read_the_state_of_their_own_tokens() {
    run_seeds(CacheKind::Tree);
}

#[test]
fn cells_steps_read_the_state_of_their_own_tokens() {
    run_seeds(CacheKind::Cells);
}

#[test]
fn paged_steps_read_the_state_of_their_own_tokens() {
    let Totals { hits, mirrored_hits, .. } = run_seeds(CacheKind::Paged);
    assert!(hits > 1000 && mirrored_hits > 1000, "{hits} {mirrored_hits}");
}

#[test]
fn radix_steps_read_the_state_of_their_own_tokens() {
    let Totals { hits, mirrored_hits, .. } = run_seeds(CacheKind::Radix);
    assert!(hits > 1000 && mirrored_hits > 1000, "{hits} {mirrored_hits}");
}
