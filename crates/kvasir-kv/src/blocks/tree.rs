//! Draft trees (speculative decoding) in a block cache: propose a frontier, commit the accepted
//! chain.
//!
//! Node `n` lies in the sequence's own blocks, `n` rows past its last position. A commit queues
//! slot copies that move accepted nodes down and releases the blocks behind the new end.

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::contract::capabilities::Tree;
use crate::contract::error::CacheError;
use crate::contract::ids::SeqId;
use crate::contract::section::SlotCopy;

/// Draft nodes lie in the sequence's own blocks, node `n` in the row `n` past its last position.
impl<I: Index> Tree for BlockCache<I> {
    fn propose(&mut self, seq: SeqId, parents: &[i32]) -> Result<(), CacheError> {
        self.seqs.get_mut(seq)?.nodes.make().propose(parents)?;
        self.changed();
        Ok(())
    }

    fn commit(&mut self, id: SeqId, accepted: &[u32]) -> Result<&[SlotCopy], CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get_mut(id)?;
        let nodes = seq.nodes.make();
        nodes.check_chain(accepted)?;
        if seq.pending.since(self.inflight.retired()).any(|pending| pending.is_tree) {
            return Err(CacheError::InFlight);
        }
        let slot = |row: u32| seq.table.block(row / block_size) * block_size + row % block_size;
        let moves = accepted.iter().zip(seq.next..).filter(|&(&node, to)| seq.next + node != to);
        self.rows.clear();
        self.rows.extend(moves.map(|(&node, to)| SlotCopy { from: slot(seq.next + node), to: slot(to) }));
        nodes.settle();
        seq.next += accepted.len() as u32;
        // The slot copies lease the blocks they read, so those are not reallocated before the
        // copies have run.
        self.moves.push(&mut self.ledger, &self.rows);
        self.trim(id)?;
        self.changed();
        Ok(&self.rows)
    }

    fn unsettled(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(seq)?.nodes.unsettled())
    }
}
