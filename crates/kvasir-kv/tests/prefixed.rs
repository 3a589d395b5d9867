//! `Prefixed` against the same cache without a prefix, under the same random operations.
//!
//! Results must agree up to the prefix length, and each read must be the prefix's rows followed by
//! the other cache's read.

#![allow(clippy::unwrap_used)]

use kvasir_kv::{
    Cache, CacheConfig, CacheError, CacheKind, ClaimRow, Contiguous, GroupId, Inspect, Lookup, Plan, PoolId,
    Prefixed, SeqId, SharedPrefix, StateConfig, StateRow, StepId, Token, build,
};
use kvasir_testkit::Random;
use proptest::prelude::*;

const ROWS: u32 = 69;

fn fill(cache: &mut dyn Cache, tokens: u32) {
    let seq = cache.open().unwrap();
    cache.claim(StepId(1), &[ClaimRow::new(seq, tokens)]).unwrap();
    cache.retire(StepId(1)).unwrap();
}

/// A prefix of `ROWS` rows in two pools, 7 and 8.
fn prefix() -> SharedPrefix {
    let mut below = Contiguous::new(64);
    fill(&mut below, 40);
    let mut above = below.freeze(PoolId(7)).unwrap().fork(64).unwrap();
    fill(&mut above, ROWS - 40);
    above.freeze(PoolId(8)).unwrap()
}

const STATES: StateConfig = StateConfig { live: 3, checkpoints: 6, tail_rows: 4, interval: 8 };

/// A prefix of two parts with recurrent states at 40, at 64 and at its end.
fn prefix_with_states() -> SharedPrefix {
    let config = CacheConfig { states: Some(STATES), ..CacheConfig::new(64) };
    let cache = || build(CacheKind::Contiguous, &config).unwrap();
    let mut below = cache();
    fill(&mut *below, 40);
    let below = SharedPrefix::freeze(below, PoolId(7)).unwrap();
    let mut above = below.under(cache()).unwrap();
    let seq = above.open().unwrap();
    above.mark_checkpoints(seq, &SharedPrefix::state_positions(ROWS)).unwrap();
    above.claim(StepId(1), &[ClaimRow::new(seq, ROWS - 40)]).unwrap();
    above.retire(StepId(1)).unwrap();
    above.freeze(PoolId(8)).map_err(|refused| refused.1).unwrap()
}

fn config(kind: CacheKind) -> CacheConfig {
    let block_size = if kind.is_block_based() { 4 } else { 1 };
    CacheConfig { block_size, max_sequences: 6, ..CacheConfig::new(96) }
}

/// The same cache twice, without and with a prefix.
struct Twins {
    alone: Box<dyn Cache>,
    behind: Prefixed<dyn Cache>,
    base: u32,
    has_states: bool,
    ids: Vec<SeqId>,
    step: u64,
    /// Steps in flight.
    claimed: Vec<u64>,
    plans: u32,
    explicit: u32,
    /// Number of plans that read the prefix's state.
    frozen_state_reads: u32,
    /// Number of checks that found the last plan stale.
    staled: u32,
    /// The last plan of each.
    last: [Plan; 2],
}

impl Twins {
    fn new(kind: CacheKind, has_states: bool) -> Self {
        let config = CacheConfig { states: has_states.then_some(STATES), ..config(kind) };
        let make = || build(kind, &config).unwrap();
        let prefix = if has_states { prefix_with_states() } else { prefix() };
        let behind = prefix.under(make()).unwrap();
        let base = behind.shape().base;
        let block = config.block_size;
        // The last state at a multiple of 4 is at 64.
        assert_eq!(base, if has_states && block == 4 { 64 } else { ROWS / block * block });
        let (ids, claimed, last) = (vec![], vec![], [Plan::default(), Plan::default()]);
        let alone = make();
        Self {
            alone,
            behind,
            base,
            has_states,
            ids,
            step: 0,
            claimed,
            plans: 0,
            explicit: 0,
            frozen_state_reads: 0,
            staled: 0,
            last,
        }
    }

    /// Runs an operation on both, which must agree on the result or both refuse.
    fn both<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        verb: impl Fn(&mut dyn Cache, u32) -> Result<T, CacheError>,
    ) -> Option<T> {
        let (a, b) = (verb(&mut *self.alone, 0), verb(&mut self.behind, self.base));
        assert_eq!(a.as_ref().ok(), b.as_ref().ok(), "{what}: {a:?} alone, {b:?} behind");
        let stale = [self.alone.check_fresh(&self.last[0]), self.behind.check_fresh(&self.last[1])];
        assert_eq!(stale[0], stale[1], "{what} makes plans stale behind a prefix as it does alone");
        self.staled += u32::from(stale[1].is_err());
        a.ok()
    }

    fn verb(&mut self, (op, a, b, c): (u8, u32, u32, u32)) {
        // Without live sequences, an id that was never issued.
        let pick = |n: u32| self.ids.get(n as usize % self.ids.len().max(1)).copied().unwrap_or_default();
        let (seq, other, range) = (pick(a), pick(b), b % 24..b % 24 + c % 24);
        match op {
            0..=2 => {
                let opened = self.both("open", |cache, _| cache.open());
                self.ids.extend(opened);
            }
            3 if self.both("close", |cache, _| cache.close(seq)).is_some() => {
                self.ids.retain(|id| *id != seq);
            }
            4..=11 => self.claim(seq, other, c),
            12..=15 if !self.claimed.is_empty() => {
                let step = StepId(self.claimed.remove(0));
                self.both("retire", |cache, _| cache.retire(step));
            }
            16 => {
                if let Some(step) = self.claimed.pop() {
                    self.both("cancel", |cache, _| cache.cancel(StepId(step)));
                }
            }
            17..=18 => {
                self.both("rewind", |cache, up| cache.rewind()?.rewind_to(seq, b % 24 + up));
            }
            // Alone, a source without rows is refused; behind a prefix it has the prefix's rows.
            19..=20 if self.alone.len(seq) == Ok(0) || range.is_empty() => {}
            19..=20 => drop(self.both("copy", |cache, up| {
                // A copy may begin inside the prefix, which every sequence has already.
                let start = if range.start == 0 { c % (up + 1) } else { range.start + up };
                cache.sequences()?.copy(seq, other, start..range.end + up)
            })),
            21 => drop(self.both("remove", |cache, up| {
                cache.sequences()?.remove(seq, range.start + up..range.end + up)
            })),
            22 => {
                let forks = self.both("fork", |cache, _| cache.sequences()?.fork(seq, c % 3));
                self.ids.extend(forks.unwrap_or_default());
            }
            23 => drop(self.both("ahead", |cache, up| Ok(cache.preallocate_slots(seq, b % 40 + up)? - up))),
            24..=26 => {
                let parents = [-1, 0, 0, 1, -1];
                let parents = &parents[..1 + c as usize % parents.len()];
                self.both("propose", |cache, _| cache.tree()?.propose(seq, parents));
            }
            27..=28 => drop(self.both("commit", |cache, _| {
                let chain: &[u32] = if c.is_multiple_of(2) { &[0] } else { &[] };
                cache.tree()?.commit(seq, chain).map(<[_]>::to_vec)
            })),
            30..=31 => {
                self.both("mark", |cache, up| cache.mark_checkpoints(seq, &[b % 60 + up]));
            }
            32 => {
                self.both("floor", |cache, up| Ok(cache.rewind()?.rewind_floor(seq, b % 24 + up)? - up));
            }
            33 => {
                self.both("rewind to checkpoint", |cache, up| {
                    Ok(cache.rewind()?.rewind_to_checkpoint(seq, b % 24 + up)? - up)
                });
            }
            29 if self.claimed.is_empty() => drop(self.both("compact", |cache, _| cache.compact())),
            _ => {}
        }
        self.compare();
    }

    fn claim(&mut self, seq: SeqId, other: SeqId, c: u32) {
        let has_states = self.has_states;
        let rows = |tokens: u32| {
            let drafts = if has_states { (c / 7 % 3).min(tokens - 1) } else { 0 };
            let row = |seq| ClaimRow { drafts, ..ClaimRow::new(seq, tokens) };
            if seq == other || c.is_multiple_of(3) { vec![row(seq)] } else { vec![row(seq), row(other)] }
        };
        // A frontier must be claimed as a whole, so several sizes are tried.
        for tokens in [1 + c % 9, 1, 2, 3, 4, 5] {
            self.step += 1;
            let step = StepId(self.step);
            if self.both("claim", |cache, _| cache.claim(step, &rows(tokens))).is_some() {
                self.claimed.push(self.step);
                return self.compare_plans(step);
            }
        }
    }

    fn compare_plans(&mut self, step: StepId) {
        let (mut alone, mut behind) = (Plan::default(), Plan::default());
        self.alone.plan(step, &mut alone).unwrap();
        self.behind.plan(step, &mut behind).unwrap();
        self.plans += 1;
        assert_eq!((&alone.moves, &alone.write_slots), (&behind.moves, &behind.write_slots));
        assert_eq!((alone.read_bound, alone.rows.len()), (behind.read_bound, behind.rows.len()));
        let moved: Vec<u32> = alone.positions.iter().map(|position| position + self.base).collect();
        assert_eq!(moved, behind.positions);
        for (a, b) in alone.rows.iter().zip(&behind.rows) {
            assert_eq!((a.queries, a.seq, a.read_len + self.base), (b.queries, b.seq, b.read_len));
            let frozen =
                (0..self.base).map(|p| if p < 40 { (PoolId(7), p, p) } else { (PoolId(8), p - 40, p) });
            let own = alone.entries(a).map(|(pool, slot, position)| (pool, slot, position + self.base));
            assert!(behind.entries(b).eq(frozen.chain(own)), "{b:?}");
            for query in 0..a.queries.len {
                assert!((0..self.base).all(|entry| behind.sees(b, query, entry)), "all of the prefix");
                let same = |entry| alone.sees(a, query, entry) == behind.sees(b, query, entry + self.base);
                assert!((0..a.read_len).all(same), "query {query} of {b:?}");
            }
            self.explicit += u32::from(matches!(b.mask, kvasir_kv::Mask::Explicit { .. }));
        }
        let (mut from_zero, states) = (alone.states, behind.states.clone());
        let frozen = states.rows.iter().filter_map(|row| row.from).find(|(pool, _)| *pool != PoolId(0));
        assert!(frozen.is_none_or(|(pool, _)| pool == PoolId(8)), "the state is the prefix's");
        from_zero.rows.iter_mut().for_each(|row| row.from = row.from.or(frozen));
        assert_eq!(from_zero, states);
        assert_eq!(self.has_states, !states.is_empty());
        let starts_from_zeros = |row: &StateRow| row.from.is_none();
        assert!(!states.rows.iter().any(starts_from_zeros), "a sequence starts from the prefix's state");
        self.frozen_state_reads += u32::from(frozen.is_some());
        alone.states = from_zero;
        self.last = [alone, behind];
    }

    fn compare(&mut self) {
        assert_eq!(self.alone.usage(), self.behind.usage());
        let group = GroupId(1);
        assert_eq!(self.alone.usage_of(group), self.behind.usage_of(group));
        let (a, b) = (&self.alone, &self.behind);
        for seq in &self.ids {
            let up = |length: Result<u32, CacheError>| length.map(|length| length + self.base);
            assert_eq!(up(a.len(*seq)), b.len(*seq));
            assert_eq!(up(a.claimed_len(*seq)), b.claimed_len(*seq));
            assert_eq!(up(a.next_position(*seq)), b.next_position(*seq));
        }
        b.check().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_shared_prefix_changes_no_cache_behavior(
        kind in 0..CacheKind::ALL.len(),
        has_states in proptest::bool::ANY,
        verbs in proptest::collection::vec((0u8..34, 0u32..1000, 0u32..1000, 0u32..1000), 20..90),
    ) {
        let mut twins = Twins::new(CacheKind::ALL[kind], has_states);
        verbs.into_iter().for_each(|verb| twins.verb(verb));
    }
}

#[test]
fn random_operations_cover_trees_and_plans() {
    let mut random = Random::new(1);
    let mut below = |n: u32| random.below(n.into()) as u32;
    for kind in CacheKind::ALL {
        for has_states in [false, true] {
            let mut twins = Twins::new(*kind, has_states);
            (0..600).for_each(|_| twins.verb((below(34) as u8, below(1000), below(1000), below(1000))));
            assert!(twins.plans > 20, "{kind}: {} plans", twins.plans);
            assert!(twins.staled > 20, "{kind}: {} checks of a stale plan", twins.staled);
            assert!(*kind == CacheKind::Contiguous || has_states || twins.explicit > 0, "{kind} ran no tree");
            assert_eq!(
                twins.frozen_state_reads > 5,
                has_states,
                "{kind}: {} plans read the prefix's state",
                twins.frozen_state_reads
            );
        }
    }
}

#[test]
fn prefix_hits_continue_behind_a_shared_prefix() {
    let prefix = prefix();
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let mut cache = prefix.under(build(kind, &config(kind)).unwrap()).unwrap();
        let tokens: Vec<Token> = (0..90).collect();
        let base = cache.shape().base;
        assert_eq!((base, cache.prefix().unwrap().lookup(&tokens, 0).tokens), (68, 68));
        let first = cache.open().unwrap();
        assert_eq!(
            cache.prefix().unwrap().attach(first, &tokens, 0, u32::MAX, Lookup::default()).unwrap().tokens,
            68
        );
        cache.claim(StepId(1), &[ClaimRow::new(first, 90 - base)]).unwrap();
        cache.retire(StepId(1)).unwrap();
        cache.prefix().unwrap().publish(first, &tokens, 90).unwrap();
        let second = cache.open().unwrap();
        let seen = cache.prefix().unwrap().lookup(&tokens, 0);
        let hit = cache.prefix().unwrap().attach(second, &tokens, 0, u32::MAX, seen.lookup).unwrap();
        assert_eq!((hit.tokens, cache.len(second)), (88, Ok(88)), "{kind}");
        // A prompt that ends inside the prefix hits the prefix only.
        assert_eq!(cache.prefix().unwrap().lookup(&tokens[..50], 0).tokens, 68);
    }
}

#[test]
fn no_operation_changes_the_shared_prefix() {
    let mut cache = prefix().under(build(CacheKind::Cells, &config(CacheKind::Cells)).unwrap()).unwrap();
    let seq = cache.open().unwrap();
    let refused = CacheError::RewindOutOfRange { to: 60, lowest: ROWS, length: ROWS };
    assert_eq!(cache.rewind().unwrap().rewind_to(seq, 60), Err(refused));
    assert_eq!(cache.sequences().unwrap().remove(seq, 60..80), Err(refused));
    let used = prefix().under(Box::new(cache)).err();
    assert!(matches!(used, Some(CacheError::BadConfig(_))), "one prefix under one cache");
}

#[test]
fn a_cache_with_states_refuses_a_prefix_without_them() {
    let config = CacheConfig { states: Some(STATES), ..config(CacheKind::Paged) };
    let error = prefix().under(build(CacheKind::Paged, &config).unwrap()).err();
    assert!(matches!(error, Some(CacheError::BadConfig(reason)) if reason.contains("no recurrent state")));
    // No multiple of 5 up to the end has a state.
    let odd = CacheConfig { block_size: 5, ..config.clone() };
    let short = CacheConfig { states: Some(STATES), ..CacheConfig::new(64) };
    let mut short = build(CacheKind::Contiguous, &short).unwrap();
    fill(&mut *short, 7);
    let short = SharedPrefix::freeze(short, PoolId(7)).unwrap();
    assert!(short.under(build(CacheKind::Paged, &odd).unwrap()).is_err());
    // A prefix shorter than a block shares nothing, and needs no state.
    let long = CacheConfig { block_size: 16, ..config };
    assert_eq!(short.under(build(CacheKind::Paged, &long).unwrap()).unwrap().shape().base, 0);
}
