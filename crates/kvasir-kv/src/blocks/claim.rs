use super::seq::{ClaimedRow, Pending, Seq};
use super::{BlockCache, Index};
use crate::{BlockId, CacheError, ClaimRow, RowMove, SeqId, StepId};
use std::ops::Range;

/// Moves of the given rows of a sequence from one block to another, at the same place in both.
pub(super) fn push_rows(
    moves: &mut Vec<RowMove>,
    from: BlockId,
    to: BlockId,
    block_size: u32,
    rows: Range<u32>,
) {
    let within = rows.map(|row| row % block_size);
    moves.extend(within.map(|row| RowMove { from: from * block_size + row, to: to * block_size + row }));
}

impl<I: Index> BlockCache<I> {
    /// Fresh blocks that `tokens` more take: the one rule for every check and every growth. A last block that is partly
    /// filled and shared counts, because it is replaced by a private copy before it is written.
    pub(super) fn blocks_needed(&self, seq: &Seq, tokens: u32) -> Result<u32, CacheError> {
        let end = seq.end().checked_add(tokens).filter(|&end| end <= u32::MAX - 256);
        let available = self.ledger.available() * self.config.block_size;
        let end = end.ok_or(CacheError::Full { needed: tokens, available })?;
        let growth = end.div_ceil(self.config.block_size) - seq.table.len() as u32;
        let growth = growth.saturating_sub(seq.ahead.len() as u32);
        Ok(growth + u32::from(tokens > 0 && self.shared_tail(seq).is_some()))
    }

    /// The partly filled last block, if it must not be written.
    fn shared_tail(&self, seq: &Seq) -> Option<BlockId> {
        let tail = *seq.table.last()?;
        let is_partial = !seq.end().is_multiple_of(self.config.block_size);
        (is_partial && !self.ledger.is_writable(tail)).then_some(tail)
    }

    pub(super) fn claim_rows(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.inflight.check_claim(step)?;
        let needed = self.check_rows(rows)?;
        let available = self.ledger.available();
        if needed > available {
            let slots = |blocks: u32| blocks.saturating_mul(self.config.block_size);
            return Err(CacheError::Full { needed: slots(needed), available: slots(available) });
        }
        let mut records = std::mem::take(&mut self.records);
        for row in rows {
            records.push(self.claim_row(step, row)?);
        }
        self.inflight.begin(step)?.append(&mut records);
        self.records = records;
        self.moves.claim(step);
        self.changed();
        Ok(())
    }

    /// Checks every row and counts the fresh blocks that they need together.
    fn check_rows(&mut self, rows: &[ClaimRow]) -> Result<u32, CacheError> {
        if rows.is_empty() {
            return Err(CacheError::BadClaim);
        }
        self.marks += 1;
        let mark = self.marks;
        let mut needed = 0u32;
        for row in rows {
            let seq = self.seqs.get_mut(row.seq)?;
            let is_twice = std::mem::replace(&mut seq.mark, mark) == mark;
            let is_empty = row.tokens == 0 && row.redirected == 0;
            let redirects = row.redirected > 0 && (!self.config.dummy || row.redirected > seq.owned_tail());
            if is_twice || is_empty || redirects {
                return Err(CacheError::BadClaim);
            }
            match seq.nodes.proposed() {
                0 if seq.nodes.unsettled() > 0 => return Err(CacheError::Unsettled),
                0 => {}
                proposed if proposed == row.tokens && row.redirected == 0 => {}
                _ => return Err(CacheError::BadClaim),
            }
            let seq = self.seqs.get(row.seq)?;
            needed = needed.saturating_add(self.blocks_needed(seq, row.tokens)?);
        }
        Ok(needed)
    }

    fn claim_row(&mut self, step: StepId, row: &ClaimRow) -> Result<ClaimedRow, CacheError> {
        let seq = self.seqs.get(row.seq)?;
        let tail = if row.tokens > 0 { self.shared_tail(seq) } else { None };
        let replaced = match tail {
            Some(tail) => Some(self.replace_tail(row.seq, tail)?),
            None => None,
        };
        let seq = self.seqs.get_mut(row.seq)?;
        let (start, end) = (seq.end(), seq.end() + row.tokens);
        let blocks = end.div_ceil(self.config.block_size);
        while (seq.table.len() as u32) < blocks {
            let full = CacheError::Full { needed: self.config.block_size, available: 0 };
            let fresh = seq.ahead.pop().or_else(|| self.ledger.take());
            seq.push(fresh.ok_or(full)?);
        }
        let is_tree = seq.nodes.proposed() > 0;
        match is_tree {
            true => drop(seq.nodes.claim()),
            false => seq.next = end,
        }
        seq.last_step = Some(step);
        seq.pending.push_back(Pending { step, start, end, is_tree });
        Ok(ClaimedRow { seq: row.seq, redirected: row.redirected, tokens: row.tokens, start, replaced })
    }

    pub(super) fn take_blocks_ahead(&mut self, id: crate::SeqId, upto: u32) -> Result<u32, CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get(id)?;
        let needed = self.blocks_needed(seq, upto.saturating_sub(seq.end()))?;
        let available = self.ledger.available();
        if needed > available {
            let slots = |blocks: u32| blocks.saturating_mul(block_size);
            return Err(CacheError::Full { needed: slots(needed), available: slots(available) });
        }
        let seq = self.seqs.get_mut(id)?;
        let held = (seq.table.len() + seq.ahead.len()) as u32;
        let fresh = upto.div_ceil(block_size).saturating_sub(held);
        // The first one taken is the first one used.
        seq.ahead.reverse();
        seq.ahead.extend((0..fresh).map_while(|_| self.ledger.take()));
        seq.ahead.reverse();
        Ok((held + fresh) * block_size)
    }

    /// Gives a sequence a private copy of its shared last block; the filled rows go over with the step's moves.
    fn replace_tail(&mut self, id: SeqId, old: BlockId) -> Result<(u32, BlockId), CacheError> {
        let block_size = self.config.block_size;
        let full = CacheError::Full { needed: block_size, available: 0 };
        let fresh = self.ledger.take().ok_or(full)?;
        let seq = self.seqs.get_mut(id)?;
        let at = seq.table.len() - 1;
        seq.table[at] = fresh;
        seq.bound = seq.bound.max(fresh + 1);
        let first = at as u32 * block_size;
        let last_step = seq.last_step;
        self.rows.clear();
        for owned in seq.owned(seq.next) {
            let within = owned.start.max(first)..owned.end;
            self.rows.extend(
                within
                    .map(|row| row - first)
                    .map(|row| RowMove { from: old * block_size + row, to: fresh * block_size + row }),
            );
        }
        self.moves.push(&mut self.ledger, &self.rows);
        self.ledger.lease(old);
        self.let_go(last_step, old);
        Ok((at as u32, old))
    }

    pub(super) fn retire_step(&mut self, step: StepId) -> Result<(), CacheError> {
        let Some(flight) = self.inflight.take_oldest(step)? else { return Ok(()) };
        for row in &flight.rows {
            if let Some((_, old)) = row.replaced {
                self.ledger.end_lease(old);
            }
            // A sequence that was closed meanwhile has nothing to publish.
            if let Ok(seq) = self.seqs.get_mut(row.seq) {
                seq.pending.pop_front_if(|pending| pending.step == step);
            }
        }
        for &block in &flight.releases {
            self.ledger.end_lease(block);
        }
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
        for &block in &flight.releases {
            self.ledger.end_lease(block);
        }
        self.inflight.recycle(flight);
        self.changed();
        Ok(())
    }

    fn cancel_row(&mut self, step: StepId, row: &ClaimedRow) -> Result<(), CacheError> {
        if let Ok(seq) = self.seqs.get_mut(row.seq)
            && let Some(pending) = seq.pending.pop_back_if(|pending| pending.step == step)
        {
            if pending.is_tree {
                seq.nodes.unclaim();
                self.trim(row.seq)?;
            } else {
                let to = seq.next.min(pending.start);
                self.truncate(row.seq, to)?;
            }
        }
        let Some((at, old)) = row.replaced else { return Ok(()) };
        if let Ok(seq) = self.seqs.get_mut(row.seq)
            && seq.table.len() as u32 == at + 1
            && let Some(entry) = seq.table.last_mut()
        {
            let fresh = std::mem::replace(entry, old);
            self.ledger.own(old);
            self.moves.drop_into(&mut self.ledger, fresh);
            self.ledger.disown(fresh);
        }
        self.ledger.end_lease(old);
        Ok(())
    }
}
