//! Fork, copy, remove and keep in a block cache, with copy-on-write of partial blocks.
//!
//! Copying a range shares every block below the end of the source of which all owned rows are
//! copied. Other rows are moved by slot copies into the destination's own block, or into a fresh
//! one (`Part`). Only retired rows are shared, because a claimed row may yet be canceled. All
//! checks and the count of fresh blocks come first, so a refusal changes nothing.
//!
//! Blocks that the source or the destination has released before its sliding window are not copied
//! (`released_by_copy`).

use crate::blocks::BlockCache;
use crate::blocks::claim::push_rows;
use crate::blocks::index::Index;
use crate::blocks::sequence::{HOLE, Seq};
use crate::contract::cache::Cache;
use crate::contract::capabilities::Sequences;
use crate::contract::error::CacheError;
use crate::contract::group::GroupId;
use crate::contract::ids::{Position, SeqId, StepId};
use std::ops::Range;

/// How the rows of one block reach the destination of a copy.
enum Part {
    /// Both own the block; nothing is copied.
    Share,
    /// Slot copies into the destination's own block.
    Into,
    /// Slot copies into a fresh block, the destination's existing rows included.
    Fresh,
}

impl<I: Index> Sequences for BlockCache<I> {
    fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let ranges = self.copied(src, dst, range)?;
        if ranges.is_empty() {
            return Ok(());
        }
        let needed = self.blocks_to_copy(src, Some(dst), &ranges)?;
        self.check_room(needed)?;
        self.copy_ranges(src, dst, &ranges)?;
        self.changed();
        Ok(())
    }

    fn remove(&mut self, id: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get_mut(id)?;
        if !seq.nodes.is_idle() {
            return Err(CacheError::Unsettled);
        }
        if range.start >= range.end || range.start >= seq.next {
            return Ok(());
        }
        if range.end >= seq.next {
            self.truncate(id, range.start)?;
            self.changed();
            return Ok(());
        }
        if range.end > seq.retired_next(self.inflight.retired()) {
            return Err(CacheError::InFlight);
        }
        seq.erase(range.clone());
        seq.published = seq.published.min(range.start / block_size);
        seq.impure_from = seq.impure_from.min(range.start);
        let last_step = seq.last_step;
        for at in range.start / block_size..range.end.div_ceil(block_size) {
            let seq = self.seqs.get_mut(id)?;
            let rows = at * block_size..(at + 1) * block_size;
            let is_empty = overlaps(seq, &rows).next().is_none();
            if is_empty && let Some(block) = seq.block(at) {
                seq.table.edit(|blocks| blocks[at as usize] = HOLE);
                self.release(last_step, block);
            }
        }
        self.changed();
        Ok(())
    }

    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError> {
        let family = self.seqs.get(seq)?.family;
        let others = self.seqs.iter().filter(|&(id, other)| id != seq && other.family == family);
        let others: Vec<SeqId> = others.map(|(id, _)| id).collect();
        others.into_iter().try_for_each(|id| self.close(id))?;
        self.changed();
        Ok(())
    }

    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError> {
        let source = self.seqs.get(seq)?;
        let ranges: Vec<_> = source.owned(source.retired_next(self.inflight.retired())).collect();
        if n > self.seqs.remaining() {
            return Err(CacheError::TooManySequences);
        }
        let needed = self.blocks_to_copy(seq, None, &ranges)?;
        self.check_room(needed.saturating_mul(n))?;
        let family = source.family;
        let mut forks = Vec::with_capacity(n as usize);
        for _ in 0..n {
            let fork = self.open()?;
            self.seqs.get_mut(fork)?.family = family;
            self.copy_ranges(seq, fork, &ranges)?;
            forks.push(fork);
        }
        self.changed();
        Ok(forks)
    }
}

/// Checks that a sequence is quiescent: nothing in flight, nothing unsettled.
fn check_still(seq: &Seq, retired: Option<StepId>) -> Result<(), CacheError> {
    match (seq.nodes.is_idle(), seq.pending.since(retired).next().is_none()) {
        (false, _) => Err(CacheError::Unsettled),
        (_, false) => Err(CacheError::InFlight),
        _ => Ok(()),
    }
}

/// The owned parts of a range.
fn overlaps<'a>(seq: &'a Seq, range: &Range<Position>) -> impl Iterator<Item = Range<Position>> + 'a {
    let (start, end) = (range.start, range.end.min(seq.next));
    let cut = seq.owned(end).map(move |owned| owned.start.max(start)..owned.end);
    cut.filter(|owned| owned.start < owned.end)
}

impl<I: Index> BlockCache<I> {
    /// The ranges that a copy would make `dst` own, or why it is refused.
    pub(crate) fn copied(
        &self,
        src: SeqId,
        dst: SeqId,
        range: Range<Position>,
    ) -> Result<Vec<Range<Position>>, CacheError> {
        let (source, target) = (self.seqs.get(src)?, self.seqs.get(dst)?);
        let retired = self.inflight.retired();
        // Claimed rows may yet be canceled, so only retired ones are shared.
        let shared = range.start..range.end.min(source.retired_next(retired));
        let ranges: Vec<_> = overlaps(source, &shared).collect();
        if source.len(retired) == 0 {
            return Err(CacheError::NothingToCopy);
        }
        if ranges.is_empty() {
            return Ok(ranges);
        }
        check_still(target, retired)?;
        if ranges.iter().any(|range| overlaps(target, range).next().is_some()) {
            return Err(CacheError::CopyOverlaps);
        }
        if target.next == 0 || source.family == target.family {
            Ok(ranges)
        } else {
            Err(CacheError::NotInFamily)
        }
    }

    /// How the rows of block `at` reach `dst`; `None` if none are copied.
    fn part(&self, src: &Seq, dst: Option<&Seq>, at: u32, ranges: &[Range<Position>]) -> Option<Part> {
        let block_size = self.config.block_size;
        let rows = at * block_size..(at + 1) * block_size;
        let cut =
            |range: &Range<Position>| range.end.min(rows.end).saturating_sub(range.start.max(rows.start));
        let copied: u32 = ranges.iter().map(cut).sum();
        if copied == 0 || src.block(at).is_none() {
            return None;
        }
        let owned: u32 = overlaps(src, &rows).map(|range| range.end - range.start).sum();
        Some(match dst.and_then(|dst| dst.block(at)) {
            // A block entirely below the end of all its owners is never written.
            None if copied == owned && rows.end <= src.next => Part::Share,
            Some(block) if self.ledger.is_writable(block) => Part::Into,
            _ => Part::Fresh,
        })
    }

    /// Number of fresh blocks that a copy allocates.
    pub(crate) fn blocks_to_copy(
        &self,
        src: SeqId,
        dst: Option<SeqId>,
        ranges: &[Range<Position>],
    ) -> Result<u32, CacheError> {
        let (src, dst) = (self.seqs.get(src)?, dst.map(|dst| self.seqs.get(dst)).transpose()?);
        let blocks = self.held_blocks_of(src, dst, ranges);
        let fresh = blocks.filter(|&at| matches!(self.part(src, dst, at, ranges), Some(Part::Fresh)));
        Ok(fresh.count() as u32)
    }

    /// Number of leading blocks that are released in `dst` after a copy: those that `dst` has
    /// released, and those that `src` has released if the ranges begin in them.
    fn released_by_copy(&self, src: &Seq, dst: Option<&Seq>, ranges: &[Range<Position>]) -> u32 {
        let blocks = self.blocks_of(ranges);
        let released_in_source = if blocks.start < src.released { src.released.min(blocks.end) } else { 0 };
        released_in_source.max(dst.map_or(0, |dst| dst.released))
    }

    /// Table entries that the ranges touch and that are not released in `dst` after the copy.
    fn held_blocks_of(&self, src: &Seq, dst: Option<&Seq>, ranges: &[Range<Position>]) -> Range<u32> {
        let blocks = self.blocks_of(ranges);
        blocks.start.max(self.released_by_copy(src, dst, ranges))..blocks.end
    }

    /// Number of leading blocks that are released in `dst`, or in a new sequence, after a copy.
    pub(crate) fn released_after_copy(
        &self,
        src: SeqId,
        dst: Option<SeqId>,
        ranges: &[Range<Position>],
    ) -> Result<u32, CacheError> {
        let (src, dst) = (self.seqs.get(src)?, dst.map(|dst| self.seqs.get(dst)).transpose()?);
        Ok(self.released_by_copy(src, dst, ranges))
    }

    /// Number of fresh blocks that one fork allocates.
    pub(crate) fn blocks_to_fork(&self, seq: SeqId) -> Result<u32, CacheError> {
        let source = self.seqs.get(seq)?;
        let ranges: Vec<_> = source.owned(source.retired_next(self.inflight.retired())).collect();
        self.blocks_to_copy(seq, None, &ranges)
    }

    /// Table entries that the ranges touch.
    fn blocks_of(&self, ranges: &[Range<Position>]) -> Range<u32> {
        let start = ranges.first().map_or(0, |range| range.start / self.config.block_size);
        start..ranges.last().map_or(start, |range| range.end.div_ceil(self.config.block_size))
    }

    /// Refuses with `Full` if fewer than `needed` blocks are available.
    pub(crate) fn check_room(&self, needed: u32) -> Result<(), CacheError> {
        let available = self.ledger.available();
        let slots = |blocks: u32| blocks.saturating_mul(self.config.block_size);
        if needed <= available {
            Ok(())
        } else {
            Err(CacheError::Full { group: GroupId::FULL, needed: slots(needed), available: slots(available) })
        }
    }

    /// Copies checked ranges block by block and updates the destination's metadata.
    fn copy_ranges(&mut self, src: SeqId, dst: SeqId, ranges: &[Range<Position>]) -> Result<(), CacheError> {
        let (source, target) = (self.seqs.get(src)?, self.seqs.get(dst)?);
        let released = self.released_by_copy(source, Some(target), ranges);
        let blocks = self.blocks_of(ranges);
        let mut held = self.held_blocks_of(source, Some(target), ranges);
        held.try_for_each(|at| self.copy_block(src, dst, at, ranges))?;
        if released > 0 {
            self.release_leading(dst, released, |_, _| ())?;
        }
        let source = self.seqs.get(src)?;
        let (family, salt, source_impure) = (source.family, source.salt, source.impure_from);
        let target = self.seqs.get_mut(dst)?;
        let first = ranges.first().map_or(0, |range| range.start);
        let mut impure_from = target.impure_from.min(first);
        if target.next == 0 {
            impure_from = source_impure;
            (target.family, target.salt) = (family, salt);
        }
        target.published = target.published.min(blocks.start);
        ranges.iter().for_each(|range| target.add(range.clone()));
        target.impure_from = target.holes.first().map_or(impure_from, |hole| impure_from.min(hole.start));
        Ok(())
    }

    /// Shares or copies one block; releases the block that the destination had there.
    fn copy_block(
        &mut self,
        src: SeqId,
        dst: SeqId,
        at: u32,
        ranges: &[Range<Position>],
    ) -> Result<(), CacheError> {
        let block_size = self.config.block_size;
        let (source, target) = (self.seqs.get(src)?, self.seqs.get(dst)?);
        let Some(part) = self.part(source, Some(target), at, ranges) else { return Ok(()) };
        let Some(from) = source.block(at) else { return Ok(()) };
        let had = target.block(at);
        let to = match (part, had) {
            (Part::Share, _) => from,
            (Part::Into, Some(block)) => block,
            _ => {
                let full = CacheError::Full { group: GroupId::FULL, needed: block_size, available: 0 };
                self.ledger.take().ok_or(full)?
            }
        };
        if to == from {
            self.ledger.own(from);
        } else {
            self.move_rows(src, dst, at, to, ranges)?;
        }
        let target = self.seqs.get_mut(dst)?;
        target.table.edit(|blocks| {
            blocks.resize(blocks.len().max(at as usize + 1), HOLE);
            blocks[at as usize] = to;
        });
        target.bound = target.bound.max(to + 1);
        target.was_cut = true;
        // The slot copies hold leases on what they read by now.
        let last_step = target.last_step;
        if let Some(had) = had.filter(|&had| had != to) {
            self.release(last_step, had);
        }
        Ok(())
    }

    /// Queues slot copies into `to`: the copied rows of block `at`, and those that the destination
    /// has in another block.
    fn move_rows(
        &mut self,
        src: SeqId,
        dst: SeqId,
        at: u32,
        to: u32,
        ranges: &[Range<Position>],
    ) -> Result<(), CacheError> {
        let block_size = self.config.block_size;
        let rows = at * block_size..(at + 1) * block_size;
        let (source, target) = (self.seqs.get(src)?, self.seqs.get(dst)?);
        self.rows.clear();
        if let Some(had) = target.block(at).filter(|&had| had != to) {
            let own = overlaps(target, &rows);
            own.for_each(|own| push_rows(&mut self.rows, had, to, block_size, own));
        }
        if let Some(from) = source.block(at) {
            for range in ranges {
                let copied = range.start.max(rows.start)..range.end.min(rows.end);
                push_rows(&mut self.rows, from, to, block_size, copied);
            }
        }
        self.moves.push(&mut self.ledger, &self.rows);
        Ok(())
    }
}
