//! `WindowGroup`: the K/V slots of a group of sliding-window layers, in a pool of their own.
//!
//! A block cache that repeats the operations of the primary cache, so its sequences have the same
//! ids, lengths and positions. Each sequence holds only its last blocks:
//!
//! - `retire` releases the blocks before the last `kept_rows` retired rows. A step that begins at
//!   the retired length, or up to `longest_draft` rows before it, finds every row of its window.
//! - A released block keeps its rows until the next allocation (`just_released`), so `publish`,
//!   which follows `retire`, links it, too.
//! - `link` makes blocks findable through the anchors of the primary's published blocks. `attach`
//!   shares the blocks of the window that ends at the end of a prefix hit.
//!
//! Operations that change the group do not fail: each has a check that precedes it, or the primary
//! cache has made the same checks. Guarded by `tests/windows/`.

use crate::blocks::companion_index::CompanionIndex;
use crate::blocks::{BlockCache, BlockConfig};
use crate::contract::cache::{Cache, ClaimRow};
use crate::contract::capabilities::{Inspect, MemoryHints, Rewind, Sequences, VictimSearch, Victims};
use crate::contract::error::CacheError;
use crate::contract::group::{Anchor, GroupId, WindowConfig};
use crate::contract::ids::{BlockId, Position, SeqId, StepId};
use crate::contract::plan::Plan;
use crate::contract::section::Section;
use crate::contract::usage::{BlockUse, PoolUsage};
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::ops::Range;

/// A block that was released since the last allocation: its rows are not overwritten yet.
#[derive(Clone, Copy, Debug)]
struct ReleasedBlock {
    seq: SeqId,
    /// Table entry of the block in its sequence.
    at: u32,
    block: BlockId,
}

/// The window rows of all sequences.
pub(crate) struct WindowGroup {
    group: GroupId,
    /// A query sees this many last positions, its own included.
    window: u32,
    /// Number of last retired rows that `retire` does not release.
    kept_rows: u32,
    longest_draft: u32,
    block_size: u32,
    cache: BlockCache<CompanionIndex>,
    just_released: Vec<ReleasedBlock>,
    /// Marked lengths of each sequence in whole blocks, in ascending order.
    marks: HashMap<SeqId, Vec<u32>, BuildHasherDefault<DefaultHasher>>,
    /// Results of [`WindowGroup::caches_window_before`] for the newest lookup, by number of blocks.
    cached_windows: Vec<bool>,
    /// Scratch memory of `plan`.
    plan: Plan,
    /// Scratch memory.
    ids: Vec<SeqId>,
    /// Scratch memory.
    found: Vec<BlockId>,
}

impl WindowGroup {
    /// A group without sequences. `blocks` configures the primary cache.
    pub(crate) fn new(group: GroupId, config: WindowConfig, blocks: BlockConfig) -> Result<Self, CacheError> {
        let WindowConfig { window, capacity, longest_draft } = config;
        if window == 0 {
            return Err(CacheError::BadConfig("a window must be at least 1"));
        }
        let block_size = blocks.block_size;
        let pool_config = BlockConfig { blocks: capacity / block_size, sharing: false, ..blocks };
        Ok(Self {
            group,
            window,
            kept_rows: config.kept_rows(block_size),
            longest_draft,
            block_size,
            cache: BlockCache::over(CompanionIndex::new(&pool_config)?, pool_config)?,
            just_released: Vec::new(),
            marks: HashMap::default(),
            cached_windows: Vec::new(),
            plan: Plan::default(),
            ids: Vec::new(),
            found: Vec::new(),
        })
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        self.cache.usage()
    }

    /// Writes the state of each block by id. Just released blocks count as cached: `link` may still
    /// link them to anchors.
    pub(crate) fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.cache.visit_blocks(blocks);
        for released in &self.just_released {
            if let Some(block) = blocks.get_mut(released.block as usize) {
                *block = BlockUse::Cached;
            }
        }
    }

    pub(crate) fn open(&mut self) -> Result<SeqId, CacheError> {
        self.cache.open()
    }

    pub(crate) fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.marks.remove(&seq);
        self.cache.close(seq)
    }

    pub(crate) fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        self.cache.reserve_memory(seq, tokens);
    }

    pub(crate) fn reserve_plan_memory(&mut self, rows: usize) {
        let blocks = self.kept_rows.div_ceil(self.block_size) as usize + 1;
        self.cache.reserve_plan_memory(rows.saturating_mul(blocks), rows);
    }

    /// Marks positions of a sequence, rounded down to whole blocks: blocks of the windows that end
    /// there are evicted last.
    pub(crate) fn mark(&mut self, seq: SeqId, positions: &[Position]) {
        let marks = self.marks.entry(seq).or_default();
        for position in positions {
            let mark = position / self.block_size;
            if let Err(index) = marks.binary_search(&mark) {
                marks.insert(index, mark);
            }
        }
    }

    /// Checks that [`WindowGroup::claim`] of these rows succeeds, and that no row has more draft
    /// tokens than configured.
    pub(crate) fn check_claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        if rows.iter().any(|row| row.drafts > self.longest_draft) {
            return Err(CacheError::BadClaim);
        }
        let checked = self.cache.check_claim(step, rows);
        checked.map(|_| ()).map_err(|error| error.in_group(self.group))
    }

    pub(crate) fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.just_released.clear();
        self.cache.claim(step, rows)
    }

    /// Writes the section of a claimed step into `section`, reusing its memory.
    pub(crate) fn plan(&mut self, step: StepId, section: &mut Section) -> Result<(), CacheError> {
        std::mem::swap(&mut self.plan.full, section);
        let planned = self.cache.plan(step, &mut self.plan);
        std::mem::swap(&mut self.plan.full, section);
        planned
    }

    /// Ends a step that ran, and releases the blocks before the windows of its sequences.
    pub(crate) fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.ids.clear();
        self.ids.extend(self.cache.sequences_of(step));
        self.cache.retire(step)?;
        for i in 0..self.ids.len() {
            // The sequence may have been closed.
            if let Ok(retired) = self.cache.retired_rows(self.ids[i]) {
                let to = retired.end.saturating_sub(self.kept_rows) / self.block_size;
                self.release_leading(self.ids[i], to)?;
            }
        }
        Ok(())
    }

    fn release_leading(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        let released = &mut self.just_released;
        self.cache.release_leading(seq, to, |at, block| released.push(ReleasedBlock { seq, at, block }))
    }

    pub(crate) fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.cache.cancel(step)
    }

    /// Whether a sequence of length `len` whose first `released` blocks are released holds all rows
    /// of the next query's window.
    fn holds_window(&self, len: Position, released: u32) -> bool {
        released == 0 || len >= (released * self.block_size).saturating_add(self.window - 1)
    }

    /// The greatest length up to `to` at which the sequence holds all rows of the next query's
    /// window. Length 0 needs none.
    pub(crate) fn floor(&self, seq: SeqId, to: Position) -> Result<Position, CacheError> {
        let (end, released) = (self.cache.truncated_end(seq, to)?, self.cache.released_blocks(seq)?);
        Ok(if self.holds_window(end, released) { to } else { 0 })
    }

    /// Truncates to `to`, a length that `floor` has returned.
    pub(crate) fn rewind(&mut self, seq: SeqId, to: Position) -> Result<(), CacheError> {
        self.cache.rewind_to(seq, to)
    }

    /// Position after the last retired row of a sequence.
    pub(crate) fn retired_end(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.cache.retired_rows(seq).map(|retired| retired.end)
    }

    /// Checks that [`WindowGroup::copy`] succeeds and that `dst` can continue afterwards.
    pub(crate) fn check_copy(
        &self,
        src: SeqId,
        dst: SeqId,
        range: Range<Position>,
    ) -> Result<(), CacheError> {
        let ranges = self.cache.copied(src, dst, range)?;
        let Some(last) = ranges.last() else { return Ok(()) };
        let to = last.end.max(self.cache.next_position(dst)?);
        if !self.holds_window(to, self.cache.released_after_copy(src, Some(dst), &ranges)?) {
            return Err(CacheError::WindowReleased { to, nearest: self.cache.next_position(dst)? });
        }
        let needed = self.cache.blocks_to_copy(src, Some(dst), &ranges)?;
        self.cache.check_room(needed).map_err(|error| error.in_group(self.group))
    }

    pub(crate) fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        self.just_released.clear();
        self.cache.copy(src, dst, range)
    }

    /// Checks that [`WindowGroup::fork`] finds the blocks that it needs.
    pub(crate) fn check_fork(&self, seq: SeqId, n: u32) -> Result<(), CacheError> {
        let needed = self.cache.blocks_to_fork(seq)?.saturating_mul(n);
        self.cache.check_room(needed).map_err(|error| error.in_group(self.group))
    }

    pub(crate) fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError> {
        self.just_released.clear();
        self.cache.fork(seq, n)
    }

    /// Checks that the rows before `end` have retired, so that [`WindowGroup::remove`] of a range
    /// that ends there succeeds.
    pub(crate) fn check_retired(&self, seq: SeqId, end: Position) -> Result<(), CacheError> {
        if end > self.retired_end(seq)? { Err(CacheError::InFlight) } else { Ok(()) }
    }

    pub(crate) fn remove(&mut self, seq: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        self.cache.remove(seq, range)
    }

    pub(crate) fn keep(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.cache.keep(seq)?;
        self.marks.retain(|&id, _| self.cache.len(id).is_ok());
        Ok(())
    }

    /// Number of the first block that a query at position `len` sees.
    fn first_block(&self, len: Position) -> u32 {
        (len + 1).saturating_sub(self.window) / self.block_size
    }

    /// Computes the results of [`WindowGroup::caches_window_before`] for a prompt. `anchors` are
    /// those of the prompt's blocks in order.
    pub(crate) fn match_anchors(&mut self, anchors: &[Anchor]) {
        self.cached_windows.clear();
        self.cached_windows.push(true);
        let mut consecutive = 0;
        for (blocks, &anchor) in (1..).zip(anchors) {
            let is_cached = self.cache.index().find_anchor(anchor).is_some();
            consecutive = if is_cached { consecutive + 1 } else { 0 };
            let first = self.first_block(blocks * self.block_size);
            self.cached_windows.push(consecutive >= blocks - first);
        }
    }

    /// Whether the rows of the window that ends after the first `blocks` blocks of the matched
    /// prompt are cached.
    pub(crate) fn caches_window_before(&self, blocks: u32) -> bool {
        self.cached_windows.get(blocks as usize).copied().unwrap_or_default()
    }

    /// Collects in `self.found` the blocks that a hit of all these anchors shares.
    fn find_window(&mut self, anchors: &[Anchor]) {
        let first = self.first_block(anchors.len() as u32 * self.block_size) as usize;
        let index = self.cache.index();
        self.found.clear();
        self.found.extend(anchors[first..].iter().filter_map(|&anchor| index.find_anchor(anchor)));
    }

    /// Slots of a hit of all these anchors that are unreferenced now.
    pub(crate) fn evictable_slots(&mut self, anchors: &[Anchor]) -> u32 {
        self.find_window(anchors);
        let unused = self.found.iter().filter(|&&block| self.cache.is_unused(block));
        unused.count() as u32 * self.block_size
    }

    /// Gives an empty sequence the blocks of the window that ends at the end of a hit of all these
    /// anchors.
    pub(crate) fn attach(&mut self, seq: SeqId, anchors: &[Anchor]) -> Result<(), CacheError> {
        self.find_window(anchors);
        self.cache.attach_window(seq, anchors.len() as u32 * self.block_size, &self.found)
    }

    /// Links the blocks of a sequence up to `published` to the anchors of the primary's blocks.
    /// `anchor` returns the anchor of the primary's block at a table entry of the sequence.
    pub(crate) fn link(
        &mut self,
        seq: SeqId,
        published: Position,
        anchor: impl Fn(u32) -> Option<Anchor>,
    ) -> Result<(), CacheError> {
        let blocks = published / self.block_size;
        let released = self.just_released.iter().filter(|entry| entry.seq == seq && entry.at < blocks);
        let released = released.map(|entry| (entry.at, entry.block));
        let held = (self.cache.released_blocks(seq)?..blocks)
            .filter_map(|at| self.cache.block_at(seq, at).map(|block| (at, block)));
        let linked: Vec<(u32, BlockId)> = released.chain(held).collect();
        let marks = self.marks.get(&seq).map_or(&[][..], |marks| marks);
        for (at, block) in linked {
            let Some(anchor) = anchor(at) else { continue };
            self.cache.link(block, anchor);
            // Of all marks after the block, the window of the first one begins first.
            let next_mark = marks.get(marks.partition_point(|mark| *mark <= at));
            if next_mark.is_some_and(|mark| at >= self.first_block(mark * self.block_size)) {
                self.cache.protect(anchor);
            }
        }
        Ok(())
    }

    /// Unlinks the blocks of anchors that the primary has invalidated.
    pub(crate) fn unlink(&mut self, anchors: &[Anchor]) {
        anchors.iter().for_each(|&anchor| self.cache.unlink(anchor));
    }

    pub(crate) fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        self.cache.victims(search, victims)
    }

    pub(crate) fn slots_held_by(&mut self, sequences: &[SeqId]) -> u32 {
        self.cache.slots_held_by(sequences)[GroupId::FULL.index()]
    }

    /// Checks the block cache, and that its sequences have the lengths of the primary's.
    pub(crate) fn check(&self, primary: &dyn Cache) -> Result<(), String> {
        let group = self.group.0;
        self.cache.check().map_err(|error| format!("layer group {group}: {error}"))?;
        for seq in self.cache.ids() {
            let lengths =
                |cache: &dyn Cache| (cache.len(seq), cache.claimed_len(seq), cache.next_position(seq));
            let (own, expected) = (lengths(&self.cache), lengths(primary));
            if own != expected {
                return Err(format!("layer group {group}: {seq:?} has lengths {own:?}, not {expected:?}"));
            }
            let (next, released) = (self.cache.next_position(seq), self.cache.released_blocks(seq));
            if let (Ok(next), Ok(released)) = (next, released)
                && !self.holds_window(next, released)
            {
                return Err(format!(
                    "layer group {group}: {seq:?} of length {next} has released {released} blocks"
                ));
            }
        }
        Ok(())
    }
}
