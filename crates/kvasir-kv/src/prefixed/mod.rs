//! `Prefixed`: puts a `SharedPrefix` in front of every sequence of any cache.
//!
//! The inner cache counts positions from the prefix's end and does not know of it. Arguments are
//! reduced by `base` positions, results increased. Each plan gets the prefix's segments in front of
//! every read, the shape that cascade attention takes. An explicit mask is shifted and shows each
//! query the whole prefix. A recurrent state that would start from zeros starts from the prefix's
//! state at `base`.
//!
//! Builds on `contract` and `contiguous`, whose rows it freezes. Invariant: the prefix's rows take
//! no slots and cannot be written, removed or rewound into. Guarded by `tests/prefixed.rs`, which
//! runs the same random operations with and without a prefix.

pub(crate) mod shared_prefix;

use crate::contiguous::Contiguous;
use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{
    Hit, Inspect, Lookup, MemoryHints, Prefix, Rewind, Sequences, Tree, VictimSearch, Victims,
};
use crate::contract::error::CacheError;
use crate::contract::group::{GroupId, GroupKind, RecomputeCosts, Slots};
use crate::contract::ids::{BlockId, PoolId, Position, SeqId, Slot, StepId, Token};
use crate::contract::kv_event::KvEvent;
use crate::contract::mask::{Mask, set_range, shift_into, words_for};
use crate::contract::plan::Plan;
use crate::contract::section::{PlanKind, PlanRow, Section, Segment};
use crate::contract::span::Span;
use crate::contract::usage::{BlockUse, PoolUsage};
use crate::prefixed::shared_prefix::{Lease, SharedPrefix};
use crate::shared::rewind_target::check_rewind_target;
use std::ops::Range;

/// A cache of any kind behind a [`SharedPrefix`]. Positions of the inner cache are counted from the
/// prefix's end; every read has the prefix's segments in front.
#[derive(Debug)]
pub struct Prefixed<C: Cache + ?Sized> {
    prefix: Lease,
    /// The inner cache's shape, with `base` shared positions: whole blocks of the inner block size.
    /// If the inner cache has recurrent states, `base` is the last such length with a state.
    shape: CacheShape,
    /// The recurrent state at `base`, if the inner cache has states and `base` is not 0.
    state: Option<(PoolId, Slot)>,
    inner: Box<C>,
}

impl<C: Cache + ?Sized> Prefixed<C> {
    pub(crate) fn new(prefix: Lease, inner: Box<C>) -> Result<Self, CacheError> {
        let shape = inner.shape();
        if inner.usage().held > 0 || shape.base > 0 {
            return Err(CacheError::BadConfig("a prefix goes under a new cache only"));
        }
        if shape.rings.is_some() {
            return Err(CacheError::BadConfig(
                "a cache with rings takes no prefix: it does not keep every position",
            ));
        }
        if shape.groups.iter().any(|(_, kind)| matches!(kind, GroupKind::Window(_))) {
            return Err(CacheError::BadConfig("a cache with window groups takes no shared prefix"));
        }
        let whole = prefix.rows() / shape.block_size * shape.block_size;
        let (base, state) = if shape.groups.states().is_some() && whole > 0 {
            let (position, state) = prefix.last_state(shape.block_size).ok_or(CacheError::BadConfig(
                "the shared prefix has no recurrent state at a multiple of the block size",
            ))?;
            (position, Some(state).filter(|_| position > 0))
        } else {
            (whole, None)
        };
        let shape = CacheShape { base, ..shape.clone() };
        match base.checked_add(shape.capacity) {
            Some(_) => Ok(Self { prefix, shape, state, inner }),
            None => Err(CacheError::BadConfig("prefix and capacity together are too long")),
        }
    }

    /// Shifts a plan of the inner cache behind the prefix.
    fn offset_plan(&self, plan: &mut Plan) {
        plan.positions.iter_mut().for_each(|position| *position += self.shape.base);
        plan.states.rows.iter_mut().for_each(|row| row.from = row.from.or(self.state));
        let section = &mut plan.full;
        if section.kind == PlanKind::Contiguous {
            section.kind = PlanKind::Ragged;
        }
        section.read_positions.iter_mut().for_each(|position| *position += self.shape.base);
        let (segments, words) = (section.segments.len(), section.mask_words.len());
        for i in 0..section.rows.len() {
            self.lift_row(section, i);
        }
        // The rewritten segments and masks stand behind their originals, which go now.
        section.segments.drain(..segments);
        section.mask_words.drain(..words);
        for row in &mut section.rows {
            row.segments.start -= segments as u32;
            if let Mask::Explicit { at, .. } = &mut row.mask {
                *at -= words as u32;
            }
        }
    }

    /// Rewrites one batch row's segments and mask at the end of the lists.
    fn lift_row(&self, section: &mut Section, i: usize) {
        let mut row = section.rows[i];
        let start = section.segments.len();
        self.prefix.push_segments(self.shape.base, &mut section.segments);
        for own in row.segments.range() {
            let segment = section.segments[own];
            section.segments.push(Segment { first: segment.first + self.shape.base, ..segment });
        }
        row.segments = Span::new(start, section.segments.len() - start);
        row.read_len += self.shape.base;
        if let Mask::Explicit { at, words_per_query } = row.mask {
            row.mask = self.extended_mask(section, &row, at, words_per_query);
        }
        section.rows[i] = row;
    }

    /// The mask over prefix plus own read: all prefix bits set, then the inner mask, which begins
    /// at word `from` with `words` words per query.
    fn extended_mask(&self, section: &mut Section, row: &PlanRow, from: u32, words: u32) -> Mask {
        let (at, per_query) = (section.mask_words.len(), words_for(row.read_len));
        section.mask_words.resize(at + (per_query * row.queries.len) as usize, 0);
        let (inner, extended) = section.mask_words.split_at_mut(at);
        for query in 0..row.queries.len {
            let inner = &inner[(from + query * words) as usize..][..words as usize];
            let extended = &mut extended[(query * per_query) as usize..][..per_query as usize];
            set_range(extended, 0, self.shape.base);
            shift_into(extended, inner, self.shape.base);
        }
        Mask::Explicit { at: at as u32, words_per_query: per_query }
    }

    /// The part of a range behind the prefix, in positions of the inner cache.
    fn own(&self, range: &Range<Position>) -> Range<Position> {
        range.start.saturating_sub(self.shape.base)..range.end.saturating_sub(self.shape.base)
    }

    /// The tokens of a prompt behind the prefix; empty if there are none.
    fn rest<'t>(&self, tokens: &'t [Token]) -> &'t [Token] {
        tokens.get(self.shape.base as usize..).unwrap_or_default()
    }

    /// Refuses positions inside the prefix.
    fn check_own(&self, seq: SeqId, from: Position) -> Result<(), CacheError> {
        let length = self.next_position(seq)?;
        if from < self.shape.base {
            Err(CacheError::RewindOutOfRange { to: from, lowest: self.shape.base, length })
        } else {
            Ok(())
        }
    }

    /// An error of the inner cache with the positions increased by `base`.
    fn offset_error(&self, error: CacheError) -> CacheError {
        let base = self.shape.base;
        match error {
            CacheError::RewindOutOfRange { to, lowest, length } => {
                CacheError::RewindOutOfRange { to: to + base, lowest: lowest + base, length: length + base }
            }
            CacheError::NoCheckpoint { to, nearest } => {
                CacheError::NoCheckpoint { to: to + base, nearest: nearest + base }
            }
            other => other,
        }
    }

    /// A hit of the inner cache with the lengths increased by `base`.
    fn offset_hit(&self, hit: Hit) -> Hit {
        let base = self.shape.base;
        Hit { tokens: hit.tokens + base, matched: hit.matched + base, ..hit }
    }
}

impl SharedPrefix {
    /// A contiguous cache behind this prefix, with `capacity` slots of its own.
    pub fn fork(&self, capacity: u32) -> Result<Prefixed<Contiguous>, CacheError> {
        self.under(Box::new(Contiguous::new(capacity)))
    }

    /// Puts this prefix in front of every sequence of `cache`, which must be new and keep every
    /// position (no window of its own, no rings). Only whole blocks of the cache's block size are
    /// shared.
    pub fn under<C: Cache + ?Sized>(&self, cache: Box<C>) -> Result<Prefixed<C>, CacheError> {
        Prefixed::new(self.lease(), cache)
    }
}

impl Contiguous {
    /// Freezes its rows into a read-only prefix, which the backend then keeps as `pool`. Refused,
    /// with the cache returned, while a step is in flight or with rings.
    pub fn freeze(self, pool: PoolId) -> Result<SharedPrefix, Box<(Self, CacheError)>> {
        match self.rows_to_freeze() {
            Ok(own) => Ok(SharedPrefix::new(pool, own, None)),
            Err(error) => Err(Box::new((self, error))),
        }
    }
}

impl Prefixed<Contiguous> {
    /// Rows of the sequence in its own slots, without the prefix.
    pub fn own_rows(&self) -> u32 {
        self.inner.rows()
    }
}

impl<C: Cache + ?Sized> Prefixed<C> {
    /// Freezes prefix plus own rows into a longer prefix; the backend then keeps the own rows as
    /// `pool`. Fails like [`Cache::rows_to_freeze`], with the cache returned.
    pub fn freeze(self, pool: PoolId) -> Result<SharedPrefix, Box<(Self, CacheError)>> {
        match self.inner.rows_to_freeze() {
            Ok(own) if self.shape.base == self.prefix.rows() => {
                Ok(SharedPrefix::new(pool, own, Some(self.prefix)))
            }
            Ok(_) => {
                let error = CacheError::BadConfig("only a cache that reads the whole prefix can extend it");
                Err(Box::new((self, error)))
            }
            Err(error) => Err(Box::new((self, error))),
        }
    }
}

impl<C: Cache + ?Sized> Cache for Prefixed<C> {
    fn shape(&self) -> &CacheShape {
        &self.shape
    }

    fn usage(&self) -> PoolUsage {
        self.inner.usage()
    }

    fn usage_of(&self, group: GroupId) -> PoolUsage {
        self.inner.usage_of(group)
    }

    fn mark_checkpoints(&mut self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        let own: Vec<Position> =
            positions.iter().map(|position| position.saturating_sub(self.shape.base)).collect();
        self.inner.mark_checkpoints(seq, &own)
    }

    fn set_recompute_costs(&mut self, costs: RecomputeCosts) {
        self.inner.set_recompute_costs(costs);
    }

    fn generation(&self) -> u64 {
        self.inner.generation()
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        self.inner.open()
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.inner.close(seq)
    }

    fn preallocate_slots(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        Ok(self.shape.base + self.inner.preallocate_slots(seq, upto.saturating_sub(self.shape.base))?)
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.shape.base + self.inner.len(seq)?)
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.shape.base + self.inner.claimed_len(seq)?)
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        Ok(self.shape.base + self.inner.next_position(seq)?)
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.inner.claim(step, rows)
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        self.inner.plan(step, plan)?;
        self.offset_plan(plan);
        Ok(())
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.inner.retire(step)
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.inner.cancel(step)
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        self.inner.rewind()?;
        Ok(self)
    }

    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        self.inner.sequences()?;
        Ok(self)
    }

    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        self.inner.prefix()?;
        Ok(self)
    }

    /// Node numbers do not depend on positions, so the inner tree is used as it is.
    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        self.inner.tree()
    }
}

impl<C: Cache + ?Sized> Inspect for Prefixed<C> {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.inner.visit_blocks(blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.inner.blocks_of(seq, into)
    }

    fn check(&self) -> Result<(), String> {
        self.inner.check()
    }
}

impl<C: Cache + ?Sized> MemoryHints for Prefixed<C> {
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        self.inner.reserve_memory(seq, tokens.saturating_sub(self.shape.base));
    }

    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        self.inner.reserve_plan_memory(blocks, rows);
    }

    fn compact(&mut self) -> Result<u32, CacheError> {
        self.inner.compact()
    }
}

impl<C: Cache + ?Sized> Victims for Prefixed<C> {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let truncate = search.truncate.map(|(seq, len)| (seq, len.saturating_sub(self.shape.base)));
        let hit = Hit { tokens: search.hit.tokens.saturating_sub(self.shape.base), ..search.hit };
        self.inner.victims(&VictimSearch { truncate, hit, ..*search }, victims)
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        self.inner.slots_held_by(sequences)
    }
}

impl<C: Cache + ?Sized> Rewind for Prefixed<C> {
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        let base = self.shape.base;
        check_rewind_target(to, base..=self.next_position(seq)?)?;
        Ok(base + self.inner.rewind()?.rewind_floor(seq, to - base)?)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        self.check_own(seq, to)?;
        let base = self.shape.base;
        let rewound = self.inner.rewind()?.rewind_to(seq, to - base);
        rewound.map_err(|error| self.offset_error(error))
    }

    fn rewind_to_checkpoint(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        self.check_own(seq, to)?;
        let base = self.shape.base;
        let rewound = self.inner.rewind()?.rewind_to_checkpoint(seq, to - base);
        rewound.map(|len| base + len).map_err(|error| self.offset_error(error))
    }
}

impl<C: Cache + ?Sized> Sequences for Prefixed<C> {
    /// Every sequence has the prefix's positions already; if the source has nothing behind them,
    /// nothing is done.
    fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        self.inner.len(dst)?;
        let (has_own, own) = (self.inner.len(src)? > 0, self.own(&range));
        let sequences = self.inner.sequences()?;
        let copied = if has_own && !own.is_empty() { sequences.copy(src, dst, own) } else { Ok(()) };
        copied.map_err(|error| self.offset_error(error))
    }

    fn remove(&mut self, seq: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        self.check_own(seq, range.start)?;
        let own = self.own(&range);
        let removed = self.inner.sequences()?.remove(seq, own);
        removed.map_err(|error| self.offset_error(error))
    }

    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.inner.sequences()?.keep(seq)
    }

    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError> {
        self.inner.sequences()?.fork(seq, n)
    }
}

const NO_TRANSFER: &str = "K/V transfer is impossible with a shared prefix";

/// The caller must pass tokens that begin with the prefix's tokens.
impl<C: Cache + ?Sized> Prefix for Prefixed<C> {
    fn lookup(&mut self, tokens: &[Token], salt: u64) -> Hit {
        let rest = self.rest(tokens);
        let found = self.inner.prefix().map(|prefix| prefix.lookup(rest, salt)).unwrap_or_default();
        self.offset_hit(found)
    }

    fn attach(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        salt: u64,
        limit: u32,
        lookup: Lookup,
    ) -> Result<Hit, CacheError> {
        let (rest, limit) = (self.rest(tokens), limit.saturating_sub(self.shape.base));
        let found = self.inner.prefix()?.attach(seq, rest, salt, limit, lookup)?;
        Ok(self.offset_hit(found))
    }

    fn publish(&mut self, seq: SeqId, tokens: &[Token], computed: u32) -> Result<(), CacheError> {
        let (rest, computed) = (self.rest(tokens), computed.saturating_sub(self.shape.base));
        self.inner.prefix()?.publish(seq, rest, computed)
    }

    fn published(&self, _seq: SeqId) -> Result<u32, CacheError> {
        Err(CacheError::BadConfig(NO_TRANSFER))
    }

    fn import(&mut self, _seq: SeqId, _upto: u32) -> Result<(), CacheError> {
        Err(CacheError::BadConfig(NO_TRANSFER))
    }

    fn evict(&mut self, slots: u32) -> Result<u32, CacheError> {
        self.inner.prefix()?.evict(slots)
    }

    fn record_events(&mut self) -> Result<(), CacheError> {
        let why = "KV events do not support a shared prefix: block hashes do not cover its tokens";
        Err(CacheError::BadConfig(why))
    }

    fn take_events(&mut self, _into: &mut Vec<KvEvent>) {}
}
