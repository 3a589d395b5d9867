//! Truncation of sequences in a block cache, and release of blocks: at once, or deferred until the
//! last step that names the sequence retires.

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::blocks::sequence::HOLE;
use crate::contract::capabilities::Rewind;
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, SeqId, StepId};
use crate::shared::rewind_target::check_rewind_target;

impl<I: Index> Rewind for BlockCache<I> {
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.seqs.get(seq)?.next)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        if !self.seqs.get(seq)?.nodes.is_idle() {
            return Err(CacheError::Unsettled);
        }
        self.rewind_floor(seq, to)?;
        self.truncate(seq, to)?;
        self.changed();
        Ok(())
    }
}

impl<I: Index> BlockCache<I> {
    /// Truncates a sequence to positions below `to`, claims in flight included.
    pub(super) fn truncate(&mut self, id: SeqId, to: u32) -> Result<(), CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get_mut(id)?;
        let end = seq.truncated_end(to);
        seq.holes.edit(|holes| holes.retain(|hole| hole.end < end));
        seq.next = end;
        seq.released = seq.released.min(self.size.of(end));
        for pending in seq.pending.iter_mut() {
            pending.start = pending.start.min(end);
            pending.end = pending.end.min(end);
        }
        seq.was_cut = true;
        seq.published = seq.published.min(end / block_size);
        if end <= seq.impure_from {
            seq.impure_from = u32::MAX;
        }
        self.trim(id)
    }

    /// Releases the blocks behind a sequence's last row.
    pub(super) fn trim(&mut self, id: SeqId) -> Result<(), CacheError> {
        let blocks = self.size.holding(self.seqs.get(id)?.end());
        self.release_from(id, blocks)
    }

    /// Releases the blocks of a sequence from table entry `from` on.
    pub(super) fn release_from(&mut self, id: SeqId, from: u32) -> Result<(), CacheError> {
        let seq = self.seqs.get_mut(id)?;
        let last_step = seq.last_step;
        let mut table = std::mem::take(&mut seq.table);
        let gone = table.gather().get(from as usize..).unwrap_or(&[]);
        match I::FROM_END {
            true => gone.iter().rev().for_each(|&block| self.release(last_step, block)),
            false if self.moves.is_empty() && !gone.contains(&HOLE) => self.release_all(last_step, gone),
            false => gone.iter().for_each(|&block| self.release(last_step, block)),
        }
        if !gone.is_empty() {
            table.edit(|blocks| blocks.truncate(from as usize));
        }
        self.seqs.get_mut(id)?.table = table;
        Ok(())
    }

    /// Releases blocks that are no destination of a slot copy: now, or when the last step that
    /// names the sequence retires.
    fn release_all(&mut self, last_step: Option<StepId>, blocks: &[BlockId]) {
        if last_step.is_some_and(|step| self.inflight.defer_all(step, blocks)) {
            self.ledger.disown_all_later(blocks)
        } else {
            self.ledger.disown_all(blocks)
        }
    }

    /// Releases one block: now, or when the last step that names the sequence retires. Drops slot
    /// copies into it if this was its last owner.
    pub(super) fn release(&mut self, last_step: Option<StepId>, block: BlockId) {
        if block == HOLE {
            return;
        }
        if !self.moves.is_empty() && self.ledger.uses(block).owners == 1 {
            self.moves.drop_into(&mut self.ledger, block);
        }
        match last_step.map(|step| self.inflight.defer(step, block)) {
            Some(Ok(())) => self.ledger.disown_later(block),
            _ => self.ledger.disown(block),
        }
    }
}
