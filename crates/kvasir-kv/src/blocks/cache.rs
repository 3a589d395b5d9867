//! The `Cache` trait of `BlockCache`: lifecycle, pool usage and lengths; the work is in the sibling
//! modules.

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::blocks::sequence::Seq;
use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Anchors, MemoryHints, Prefix, Rewind, Sequences, Tree};
use crate::contract::error::CacheError;
use crate::contract::ids::{Position, SeqId, StepId};
use crate::contract::plan::Plan;
use crate::contract::usage::PoolUsage;

impl<I: Index> Cache for BlockCache<I> {
    fn shape(&self) -> &CacheShape {
        &self.shape
    }

    fn usage(&self) -> PoolUsage {
        let index = &self.ledger.index;
        let (free, evictable, leased) = (index.free(), index.evictable(), self.ledger.leased());
        let slots = |blocks: u32| blocks * self.config.block_size;
        PoolUsage {
            free: slots(free),
            evictable: slots(evictable),
            held: slots(self.config.blocks - free - evictable - leased),
            leased: slots(leased),
        }
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        let seq = self.seqs.open()?;
        self.families += 1;
        self.seqs.get_mut(seq)?.reset(self.families);
        Ok(seq)
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.release_from(seq, 0)?;
        for block in self.seqs.get_mut(seq)?.ahead.take() {
            self.ledger.disown(block);
        }
        self.seqs.close(seq)?;
        self.changed();
        Ok(())
    }

    fn preallocate_slots(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        self.preallocate_blocks(seq, upto)
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.seqs.get(seq).map(|seq| seq.len(self.inflight.retired()))
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.seqs.get(seq).map(Seq::claimed_len)
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.seqs.get(seq).map(|seq| seq.next)
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.claim_rows(step, rows)
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        self.write_plan(step, plan)
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.retire_step(step)
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.cancel_step(step)
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Ok(self)
    }

    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        Ok(self)
    }

    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        Ok(self)
    }

    fn anchors(&mut self) -> Option<&mut dyn Anchors> {
        Some(self)
    }

    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        Ok(self)
    }
}

impl<I: Index> MemoryHints for BlockCache<I> {
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        let blocks = tokens.div_ceil(self.config.block_size).min(self.config.blocks) as usize;
        if let Ok(seq) = self.seqs.get_mut(seq) {
            seq.table.reserve(blocks);
        }
    }

    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        self.writer.reserve(blocks, rows);
    }
}
