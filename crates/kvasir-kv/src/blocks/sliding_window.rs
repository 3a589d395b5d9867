//! Operations on the block cache of a sliding-window group, whose sequences hold only their last
//! blocks.
//!
//! - `release_leading` releases the blocks before the window. Their table entries become holes, but
//!   the sequence counts their positions as owned, so it has the length that it has in the full
//!   group.
//! - `attach_window` gives a sequence the last blocks of a prefix hit.
//! - `link` makes a block findable through the anchor of the full group's block with the same
//!   positions.

use crate::blocks::BlockCache;
use crate::blocks::companion_index::CompanionIndex;
use crate::blocks::index::Index;
use crate::blocks::ledger::Uses;
use crate::blocks::sequence::HOLE;
use crate::contract::error::CacheError;
use crate::contract::group::Anchor;
use crate::contract::ids::{BlockId, Position, SeqId, StepId};
use crate::shared::runs::runs;
use std::ops::Range;

impl<I: Index> BlockCache<I> {
    /// Releases the blocks of a sequence below table entry `to` that it still holds. Calls
    /// `on_release` with the entry and the block of each that is not the destination of a pending
    /// slot copy.
    pub(crate) fn release_leading(
        &mut self,
        id: SeqId,
        to: u32,
        mut on_release: impl FnMut(u32, BlockId),
    ) -> Result<(), CacheError> {
        let seq = self.seqs.get_mut(id)?;
        let entries = seq.released..to.max(seq.released);
        if entries.is_empty() {
            return Ok(());
        }
        let last_step = seq.last_step;
        for at in entries.clone() {
            let Some(block) = self.seqs.get(id)?.block(at) else { continue };
            if self.moves.is_empty() || !self.moves.fills(block) {
                on_release(at, block);
            }
            self.release(last_step, block);
        }
        let seq = self.seqs.get_mut(id)?;
        seq.table.edit(|blocks| {
            blocks.resize(blocks.len().max(entries.end as usize), HOLE);
            blocks[entries.start as usize..entries.end as usize].fill(HOLE);
        });
        seq.released = entries.end;
        Ok(())
    }

    /// The positions of a sequence that have retired and are not released.
    pub(crate) fn retired_rows(&self, id: SeqId) -> Result<Range<Position>, CacheError> {
        let seq = self.seqs.get(id)?;
        let end = seq.retired_next(self.inflight.retired()).min(seq.next);
        Ok(seq.released * self.config.block_size..end)
    }

    /// The sequences of the rows of a claimed step.
    pub(crate) fn sequences_of(&self, step: StepId) -> impl Iterator<Item = SeqId> {
        let rows = self.inflight.get(step).map_or(&[][..], |flight| &flight.rows);
        rows.iter().map(|row| row.seq)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = SeqId> {
        self.seqs.iter().map(|(id, _)| id)
    }

    /// Whether no sequence owns the block and no step in flight or slot copy leases it.
    pub(crate) fn is_unused(&self, block: BlockId) -> bool {
        self.ledger.uses(block) == Uses::default()
    }

    /// Number of leading blocks of a sequence that are released.
    pub(crate) fn released_blocks(&self, id: SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(id)?.released)
    }

    /// Length of a sequence after a truncation to `to`.
    pub(crate) fn truncated_end(&self, id: SeqId, to: Position) -> Result<Position, CacheError> {
        Ok(self.seqs.get(id)?.truncated_end(to))
    }
}

impl BlockCache<CompanionIndex> {
    /// Makes an empty sequence own the last blocks of a prefix that ends at `next`, a multiple of
    /// the block size. The blocks before them count as released.
    pub(crate) fn attach_window(
        &mut self,
        id: SeqId,
        next: Position,
        blocks: &[BlockId],
    ) -> Result<(), CacheError> {
        let released = self.size.of(next) - blocks.len() as u32;
        let seq = self.seqs.get_mut(id)?;
        seq.next = next;
        seq.released = released;
        seq.table.edit(|table| table.resize(released as usize, HOLE));
        for run in runs(blocks) {
            seq.bound = seq.bound.max(run.end);
            seq.table.extend(run.clone());
            self.ledger.own_all(run);
        }
        Ok(())
    }

    /// The block of a sequence at table entry `at`, if it has one there.
    pub(crate) fn block_at(&self, id: SeqId, at: u32) -> Option<BlockId> {
        self.seqs.get(id).ok().and_then(|seq| seq.block(at))
    }

    /// Makes a full block of retired rows findable through `anchor`, unless another block is. Does
    /// nothing if a pending slot copy has yet to fill the block.
    pub(crate) fn link(&mut self, block: BlockId, anchor: Anchor) {
        if self.moves.is_empty() || !self.moves.fills(block) {
            let is_used = !self.is_unused(block);
            self.ledger.index.link(block, anchor, is_used);
        }
    }

    /// Makes the block of `anchor` no longer findable.
    pub(crate) fn unlink(&mut self, anchor: Anchor) {
        if let Some(block) = self.ledger.index.find_anchor(anchor) {
            let is_used = !self.is_unused(block);
            self.ledger.index.unlink(block, is_used);
        }
    }

    /// Makes the block of `anchor` one that is evicted last.
    pub(crate) fn protect(&mut self, anchor: Anchor) {
        if let Some(block) = self.ledger.index.find_anchor(anchor) {
            let is_used = !self.is_unused(block);
            self.ledger.index.protect(block, is_used);
        }
    }
}
