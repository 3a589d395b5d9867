//! Import of rows whose K and V were computed in another pool, into a sequence without a step.
//!
//! 1. Preallocate the blocks, or fail.
//! 2. Move them into the table; the rows count as retired.
//!
//! The blocks are private to the sequence, so no step in flight reads or writes them. Publishing
//! applies the checks of computed rows.

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::contract::error::CacheError;
use crate::contract::ids::SeqId;

impl<I: Index> BlockCache<I> {
    /// See [`Prefix::import`](crate::Prefix::import).
    pub(super) fn import_rows(&mut self, id: SeqId, upto: u32) -> Result<(), CacheError> {
        let seq = self.seqs.get(id)?;
        if !seq.nodes.is_idle() {
            return Err(CacheError::Unsettled);
        }
        if seq.pending.since(self.inflight.retired()).next().is_some() {
            return Err(CacheError::InFlight);
        }
        if upto <= seq.next || self.size.within(seq.next) > 0 {
            return Err(CacheError::BadClaim);
        }
        self.preallocate_blocks(id, upto)?;
        let blocks = self.size.holding(upto);
        let seq = self.seqs.get_mut(id)?;
        let grows = blocks.saturating_sub(seq.table.len()) as usize;
        let (ahead, bound, table) = (&mut seq.ahead, &mut seq.bound, &mut seq.table);
        ahead.edit(|ahead| {
            for block in ahead.drain(ahead.len().saturating_sub(grows)..).rev() {
                *bound = (*bound).max(block + 1);
                table.extend(block..block + 1);
            }
        });
        seq.next = upto;
        // The last block is private.
        seq.was_cut = false;
        self.changed();
        Ok(())
    }
}
