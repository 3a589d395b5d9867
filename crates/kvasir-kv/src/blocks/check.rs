//! Inspection of `BlockCache`. The consistency check recounts every reference from tables, slot
//! copies and steps in flight, and checks each sequence and the index; the model-based tests run it
//! after every operation.

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::blocks::ledger::Uses;
use crate::blocks::pending::Pending;
use crate::blocks::sequence::{HOLE, Seq};
use crate::contract::cache::Cache;
use crate::contract::capabilities::Inspect;
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, SeqId};
use crate::contract::usage::BlockUse;

impl<I: Index> Inspect for BlockCache<I> {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        blocks.clear();
        blocks.extend((0..u32::from(self.config.dummy)).map(|_| BlockUse::Dummy));
        let first = blocks.len() as u32;
        self.ledger.visit_blocks(first..first + self.config.blocks, blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.seqs.get(seq)?.table.blocks().copy(0..u32::MAX, into);
        into.extend(self.ahead(seq)?);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let ids = self.config.ids().map_err(|error| error.to_string())?;
        let mut uses = vec![Uses::default(); ids.end as usize];
        let mut count = |block: BlockId, add: fn(&mut Uses)| match uses.get_mut(block as usize) {
            Some(uses) if ids.contains(&block) => {
                add(uses);
                Ok(())
            }
            _ => Err(format!("block {block} was never handed out")),
        };
        for (id, seq) in self.seqs.iter() {
            self.check_seq(id, seq)?;
            let ahead = seq.ahead.iter().copied();
            let mut blocks = seq.table.blocks().iter().filter(|&block| block != HOLE).chain(ahead);
            blocks.try_for_each(|block| count(block, |uses| uses.owners += 1))?;
        }
        let kept = self.inflight.iter().flat_map(|flight| flight.releases.iter().copied());
        let kept = kept.chain(self.replaced.iter().map(|replaced| replaced.old));
        kept.chain(self.moves.leases()).try_for_each(|block| count(block, |uses| uses.leases += 1))?;
        self.ledger.check(&uses)?;
        let usage = self.usage();
        if u64::from(usage.free) + u64::from(usage.evictable) + u64::from(usage.leased)
            <= u64::from(self.config.blocks * self.config.block_size)
        {
            Ok(())
        } else {
            Err(format!("{usage:?} is more than the cache has"))
        }
    }
}

impl<I: Index> BlockCache<I> {
    /// Invariants of one sequence: table length, writable last block, sorted holes, claims in
    /// order.
    fn check_seq(&self, id: SeqId, seq: &Seq) -> Result<(), String> {
        let fail = |what: String| Err(format!("sequence {}: {what}", id.0));
        let block_size = self.config.block_size;
        if seq.table.len() != seq.end().div_ceil(block_size) {
            return fail(format!("{} blocks for {} rows", seq.table.len(), seq.end()));
        }
        if seq.released * block_size > seq.next {
            return fail(format!("{} blocks before position {} are released", seq.released, seq.next));
        }
        let tail = seq.table.last().filter(|_| self.size.within(seq.end()) > 0);
        if !seq.was_cut && tail.is_some_and(|tail| !self.ledger.is_writable(tail)) {
            return fail("its last block is not its own".into());
        }
        if let Some(bad) = seq.holes.windows(2).find(|pair| pair[0].end >= pair[1].start) {
            return fail(format!("holes {bad:?} are not apart"));
        }
        if seq.holes.iter().any(|hole| hole.is_empty() || hole.end >= seq.next) {
            return fail(format!("holes {:?} below position {}", seq.holes, seq.next));
        }
        for (at, block) in (0..).zip(seq.table.blocks().iter()) {
            let rows = at * block_size..(at + 1) * block_size;
            let mut owned = seq.owned(seq.next).chain(std::iter::once(seq.next..seq.end()));
            let owns = owned.any(|range| range.start < rows.end && rows.start < range.end);
            if (owns && at >= seq.released) != (block != HOLE) {
                return fail(format!("block {at} of its table is {block}"));
            }
            if block != HOLE && block >= seq.bound {
                return fail(format!("block {block} is not below its bound {}", seq.bound));
            }
            let published = at < seq.published;
            if published && !self.ledger.index.is_published(block) {
                return fail(format!("block {at} of its table counts as published"));
            }
        }
        let retired = self.inflight.retired();
        let claims = || seq.pending.since(retired);
        if claims().rev().map(|pending| pending.is_tree).is_sorted_by(|a, b| a >= b) {
            let nodes: u32 = claims().filter(|pending| pending.is_tree).map(Pending::tokens).sum();
            if nodes > seq.nodes.unsettled() {
                return fail(format!("{nodes} nodes in flight of {} unsettled", seq.nodes.unsettled()));
            }
        } else {
            return fail("a claim was made over unsettled nodes".into());
        }
        let mut end = seq.retired_next(retired);
        for pending in claims().filter(|pending| !pending.is_tree) {
            if pending.start != end || pending.end < pending.start {
                return fail(format!("claims in flight {:?}", seq.pending));
            }
            end = pending.end;
        }
        if end != seq.next {
            return fail(format!("claims in flight end at {end}, the sequence at {}", seq.next));
        }
        Ok(())
    }
}
