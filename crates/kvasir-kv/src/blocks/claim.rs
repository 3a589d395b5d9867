//! Allocation for a step (`claim`), its undo (`cancel`), retirement, and preallocation of blocks.
//!
//! A claim:
//!
//! 1. `check_rows` validates every batch row and counts the fresh blocks needed, minus preallocated
//!    ones. A failure up to here changes nothing.
//! 2. `Ledger::take_all` allocates them all, evicting cached blocks where the free list is short.
//! 3. Per row: replace a shared, partly filled last block by a private copy (copy-on-write,
//!    `replace_tail`), grow the table, and turn a proposed frontier into draft nodes.
//!
//! A cancel undoes the rows in reverse, so that the same blocks are preallocated or shared again. A
//! batch row of one decode token with nothing unusual takes a short check (`one_token`).

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::blocks::ledger::Ledger;
use crate::blocks::pending::Pending;
use crate::blocks::queue::BlockQueue;
use crate::blocks::sequence::{ClaimedRow, LONGEST, Replaced, Seq};
use crate::blocks::size::BlockSize;
use crate::contract::cache::ClaimRow;
use crate::contract::error::CacheError;
use crate::contract::group::GroupId;
use crate::contract::ids::{BlockId, SeqId, StepId};
use crate::contract::section::SlotCopy;
use crate::shared::draft_nodes::DraftNodes;
use std::ops::Range;

/// Appends slot copies of the given rows from one block to another, at equal offsets.
pub(crate) fn push_rows(
    moves: &mut Vec<SlotCopy>,
    from: BlockId,
    to: BlockId,
    block_size: u32,
    rows: Range<u32>,
) {
    let within = rows.map(|row| row % block_size);
    moves.extend(within.map(|row| SlotCopy { from: from * block_size + row, to: to * block_size + row }));
}

/// The record of one more decode token of a plain sequence (fast path).
#[inline]
fn one_token(id: SeqId, seq: &Seq, size: BlockSize) -> ClaimedRow {
    let grows = u32::from(size.of(seq.next) == seq.table.len());
    ClaimedRow {
        seq: id,
        redirected: 0,
        tokens: 1,
        start: seq.next,
        from_ahead: 0,
        grows,
        grows_heap: grows > 0 && (size.rows() > 1 || seq.table.grows_heap(grows)),
        replaces: false,
    }
}

/// Validates any batch row and makes its record.
#[inline(never)]
fn check_row<I: Index>(
    row: &ClaimRow,
    seq: &Seq,
    size: BlockSize,
    ledger: &Ledger<I>,
    has_dummy: bool,
) -> Result<ClaimedRow, CacheError> {
    let is_empty = row.tokens == 0 && row.redirected == 0;
    if is_empty || row.redirected > 0 && (!has_dummy || row.redirected > seq.owned_tail()) {
        return Err(CacheError::BadClaim);
    }
    if !seq.nodes.is_idle() {
        match seq.nodes.proposed() {
            0 => return Err(CacheError::Unsettled),
            proposed if proposed == row.tokens && row.redirected == 0 => {}
            _ => return Err(CacheError::BadClaim),
        }
    }
    let (grows, fresh) = growth(seq, row.tokens, size, ledger)?;
    Ok(ClaimedRow {
        seq: row.seq,
        redirected: row.redirected,
        tokens: row.tokens,
        start: seq.end(),
        from_ahead: grows - fresh,
        grows,
        grows_heap: grows > 0 && (size.rows() > 1 || !seq.ahead.is_empty() || seq.table.grows_heap(grows)),
        replaces: row.tokens > 0 && shared_tail(seq, size, ledger).is_some(),
    })
}

/// Blocks that the table grows by, and how many of them must be freshly allocated (not
/// preallocated).
fn growth<I: Index>(
    seq: &Seq,
    tokens: u32,
    size: BlockSize,
    ledger: &Ledger<I>,
) -> Result<(u32, u32), CacheError> {
    let end = seq.end().checked_add(tokens).filter(|&end| end <= LONGEST);
    let available = ledger.available() * size.rows();
    let full = || CacheError::Full { group: GroupId::FULL, needed: tokens, available };
    let more = size.holding(end.ok_or_else(full)?).saturating_sub(seq.table.len());
    Ok((more, if more > 0 { more.saturating_sub(seq.ahead.len() as u32) } else { 0 }))
}

/// The partly filled last block, if it is shared or published and so must be copied before a write.
/// Only sequences that `was_cut` can have one.
fn shared_tail<I: Index>(seq: &Seq, size: BlockSize, ledger: &Ledger<I>) -> Option<BlockId> {
    if !seq.was_cut {
        return None;
    }
    let tail = seq.table.last()?;
    let is_partial = size.within(seq.end()) > 0;
    (is_partial && !ledger.is_writable(tail)).then_some(tail)
}

/// Grows a table by any number of blocks, preallocated ones first.
#[inline(never)]
fn grow_heap(seq: &mut Seq, row: &ClaimedRow, fresh: &mut BlockQueue) {
    let (ahead, bound, table) = (&mut seq.ahead, &mut seq.bound, &mut seq.table);
    ahead.edit(|ahead| {
        for block in ahead.drain(ahead.len() - row.from_ahead as usize..).rev() {
            *bound = (*bound).max(block + 1);
            table.extend(block..block + 1);
        }
    });
    let mut left = row.grows - row.from_ahead;
    while let Some(blocks) = fresh.pop_range(left) {
        left -= blocks.len() as u32;
        table.extend(blocks);
    }
}

impl<I: Index> BlockCache<I> {
    /// Fresh blocks that `tokens` more need, the one rule for all checks. A shared, partly filled
    /// last block counts, because it is copied before it is written (copy-on-write).
    pub(super) fn blocks_needed(&self, seq: &Seq, tokens: u32) -> Result<u32, CacheError> {
        let replaced = tokens > 0 && shared_tail(seq, self.size, &self.ledger).is_some();
        let (_, fresh) = growth(seq, tokens, self.size, &self.ledger)?;
        Ok(fresh + u32::from(replaced))
    }

    /// Checks that a claim of these rows succeeds. Returns the fresh blocks that it needs.
    pub(crate) fn check_claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<u32, CacheError> {
        self.inflight.check_claim(step)?;
        let needed = self.check_rows(rows)?;
        self.check_room(needed)?;
        Ok(needed)
    }

    pub(super) fn claim_rows(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        let needed = self.check_claim(step, rows)?;
        let (mut records, mut fresh) = (std::mem::take(&mut self.records), std::mem::take(&mut self.fresh));
        // Prefetch in a loop of its own, so that the cache misses overlap.
        for &row in &self.heap_grows {
            self.seqs.get(rows[row].seq)?.table.prefetch_end();
        }
        let bound = self.ledger.take_all(needed, &mut fresh);
        records.iter().try_for_each(|record| self.claim_row(step, record, &mut fresh, bound))?;
        debug_assert_eq!(fresh.len(), 0);
        self.fresh = fresh;
        // The swap hands the flight's empty list to the next claim, so nothing is allocated.
        std::mem::swap(self.inflight.begin(step)?, &mut records);
        self.records = records;
        self.moves.claim(step);
        self.changed();
        Ok(())
    }

    /// Validates every batch row, makes a record for each, and counts the fresh blocks they need
    /// together.
    fn check_rows(&mut self, rows: &[ClaimRow]) -> Result<u32, CacheError> {
        if rows.is_empty() {
            return Err(CacheError::BadClaim);
        }
        self.marks += 1;
        self.records.clear();
        self.heap_grows.clear();
        let mut needed = 0u32;
        for row in rows {
            let seq = self.seqs.get_mut(row.seq)?;
            if std::mem::replace(&mut seq.mark, self.marks) == self.marks {
                return Err(CacheError::BadClaim);
            }
            let record = if row.redirected == 0 && row.tokens == 1 && seq.is_plain() {
                one_token(row.seq, seq, self.size)
            } else {
                check_row(row, seq, self.size, &self.ledger, self.config.dummy)?
            };
            needed = needed.saturating_add(record.grows + u32::from(record.replaces));
            needed -= record.from_ahead;
            if record.grows_heap {
                self.heap_grows.push(self.records.len());
            }
            self.records.push(record);
        }
        Ok(needed)
    }

    /// Claims one batch row with blocks from the front of `fresh`, all below `bound`.
    fn claim_row(
        &mut self,
        step: StepId,
        row: &ClaimedRow,
        fresh: &mut BlockQueue,
        bound: BlockId,
    ) -> Result<(), CacheError> {
        if row.replaces
            && let Some(block) = fresh.pop()
        {
            self.replace_tail(step, row.seq, block)?;
        }
        let seq = self.seqs.get_mut(row.seq)?;
        if row.grows > 0 {
            seq.bound = seq.bound.max(bound);
            if row.grows_heap {
                grow_heap(seq, row, fresh);
            } else if let Some(block) = fresh.pop() {
                seq.table.push(block);
            }
        }
        let (start, end) = (row.start, row.start + row.tokens);
        let proposed = seq.nodes.get_mut().filter(|nodes| nodes.proposed() > 0);
        let is_tree = proposed.is_some();
        match proposed {
            Some(nodes) => drop(nodes.claim()),
            None => seq.next = end,
        }
        // After a claim of tokens the last block is private until the next truncation or copy.
        seq.was_cut &= row.tokens == 0;
        seq.last_step = Some(step);
        seq.pending.push(Pending { step, start, end, is_tree }, self.inflight.retired());
        Ok(())
    }

    /// Preallocates blocks up to length `upto`; see `Cache::preallocate_slots`.
    pub(super) fn preallocate_blocks(&mut self, id: SeqId, upto: u32) -> Result<u32, CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get(id)?;
        let needed = self.blocks_needed(seq, upto.saturating_sub(seq.end()))?;
        self.check_room(needed)?;
        // The allocation may evict blocks of the newest lookup.
        self.looked_up = None;
        let seq = self.seqs.get_mut(id)?;
        let held = seq.table.len() + seq.ahead.len() as u32;
        let fresh = upto.div_ceil(block_size).saturating_sub(held);
        // Kept in reverse, so that the first block allocated is the first used.
        if fresh > 0 {
            let ahead = seq.ahead.make();
            ahead.reverse();
            ahead.extend((0..fresh).map_while(|_| self.ledger.take()));
            ahead.reverse();
        }
        Ok((held + fresh) * block_size)
    }

    /// Copy-on-write: replaces the shared last block by `fresh`; slot copies of the filled rows go
    /// with the step. The old block stays leased, for a cancel.
    fn replace_tail(&mut self, step: StepId, id: SeqId, fresh: BlockId) -> Result<(), CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get_mut(id)?;
        let at = seq.table.len() - 1;
        let old = seq.table.edit(|blocks| std::mem::replace(&mut blocks[at as usize], fresh));
        self.replaced.push(Replaced { step, seq: id, at, old });
        seq.bound = seq.bound.max(fresh + 1);
        let first = at * block_size;
        let last_step = seq.last_step;
        self.rows.clear();
        for owned in seq.owned(seq.next) {
            let within = owned.start.max(first)..owned.end;
            self.rows.extend(
                within
                    .map(|row| row - first)
                    .map(|row| SlotCopy { from: old * block_size + row, to: fresh * block_size + row }),
            );
        }
        self.moves.push(&mut self.ledger, &self.rows);
        self.ledger.lease(old);
        self.release(last_step, old);
        Ok(())
    }

    pub(super) fn retire_step(&mut self, step: StepId) -> Result<(), CacheError> {
        let Some(flight) = self.inflight.take_oldest(step)? else { return Ok(()) };
        // Blocks of the newest lookup may have changed from used to evictable.
        self.looked_up = None;
        for replaced in self.replaced.extract_if(.., |replaced| replaced.step == step) {
            self.ledger.end_lease(replaced.old);
        }
        self.ledger.end_leases(&flight.releases);
        if !self.moves.is_empty() {
            self.moves.retire(&mut self.ledger, step);
        }
        self.inflight.recycle(flight);
        Ok(())
    }

    pub(super) fn cancel_step(&mut self, step: StepId) -> Result<(), CacheError> {
        let flight = self.inflight.take_newest(step)?;
        if !self.moves.is_empty() {
            self.moves.cancel(&mut self.ledger, step);
        }
        for row in flight.rows.iter().rev() {
            self.cancel_row(step, row)?;
        }
        self.ledger.end_leases(&flight.releases);
        if !self.moves.is_empty() {
            self.moves.drop_unowned(&mut self.ledger);
        }
        self.inflight.recycle(flight);
        self.changed();
        Ok(())
    }

    /// Undoes one batch row: truncates or withdraws nodes, returns preallocated blocks, restores a
    /// replaced last block.
    fn cancel_row(&mut self, step: StepId, row: &ClaimedRow) -> Result<(), CacheError> {
        if let Ok(seq) = self.seqs.get_mut(row.seq)
            && let Some(pending) = seq.pending.take_newest(step)
        {
            if pending.is_tree {
                seq.nodes.get_mut().into_iter().for_each(DraftNodes::unclaim);
                self.trim(row.seq)?;
            } else {
                let to = seq.next.min(pending.start);
                if to == row.start && row.from_ahead > 0 {
                    seq.return_preallocated(self.size.holding(to), row.from_ahead);
                }
                self.truncate(row.seq, to)?;
            }
        }
        if !row.replaces {
            return Ok(());
        }
        let of_row = |replaced: &mut Replaced| (replaced.step, replaced.seq) == (step, row.seq);
        let Some(Replaced { at, old, .. }) = self.replaced.pop_if(of_row) else { return Ok(()) };
        if let Ok(seq) = self.seqs.get_mut(row.seq)
            && seq.table.len() == at + 1
        {
            let fresh = seq.table.edit(|blocks| std::mem::replace(&mut blocks[at as usize], old));
            // The last block is shared again and must be checked before the next write.
            seq.was_cut = true;
            self.ledger.own(old);
            self.moves.drop_into(&mut self.ledger, fresh);
            self.ledger.disown(fresh);
        }
        self.ledger.end_lease(old);
        Ok(())
    }
}
