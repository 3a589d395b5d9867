//! Rewind, copy, remove, keep, fork and draft trees in `cells`.
//!
//! A fork or copy shares cells by raising owner counts; no K or V is copied. Only retired rows are
//! shared. Committing draft nodes moves nothing: an accepted node's cell becomes the sequence's
//! next one.

use crate::cells::Cells;
use crate::contract::cache::Cache;
use crate::contract::capabilities::{Rewind, Sequences, Tree};
use crate::contract::error::CacheError;
use crate::contract::ids::{Position, SeqId};
use crate::contract::section::SlotCopy;
use crate::shared::draft_nodes::DraftNodes;
use crate::shared::rewind_target::check_rewind_target;
use std::ops::Range;

impl Cells {
    /// Removes a range of positions from a sequence, claims in flight included.
    fn remove_positions(&mut self, seq: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let s = self.seqs.get_mut(seq)?;
        if !s.nodes.is_idle() {
            return Err(CacheError::Unsettled);
        }
        let (from, to) = (s.entries.index_of(range.start), s.entries.index_of(range.end));
        let (cells, inflight) = (&mut self.cells, &mut self.inflight);
        s.entries.remove(from..to.max(from), |slot| Self::release(cells, inflight, s.last_step, slot));
        let next = s.entries.next_position();
        Self::cut_rows(inflight, seq, next);
        self.generation += 1;
        Ok(())
    }

    /// Makes `dst` an owner of entries of `src`; it must own none of their positions.
    fn share(&mut self, src: SeqId, dst: SeqId, entries: Range<u32>) -> Result<(), CacheError> {
        // The destination's list is moved out so that the source can be borrowed.
        let mut list = std::mem::take(&mut self.seqs.get_mut(dst)?.entries);
        let s = self.seqs.get(src)?;
        list.merge(&s.entries, entries.clone());
        let family = s.family;
        for slot in s.entries.slots().range(entries) {
            self.cells.share(slot);
        }
        let d = self.seqs.get_mut(dst)?;
        d.entries = list;
        d.family = family;
        Ok(())
    }
}

impl Rewind for Cells {
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.next_position(seq)?)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        self.rewind_floor(seq, to)?;
        self.remove_positions(seq, to..Position::MAX)
    }
}

impl Sequences for Cells {
    fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        // Claimed rows may yet be canceled, so only retired ones are shared.
        let retired = self.retired(src)?;
        let (s, d) = (self.seqs.get(src)?, self.seqs.get(dst)?);
        let entries = s.entries.index_of(range.start)..s.entries.index_of(range.end).min(retired);
        if retired == 0 {
            return Err(CacheError::NothingToCopy);
        }
        if entries.is_empty() {
            return Ok(());
        }
        if d.entries.overlaps(&s.entries, entries.clone()) {
            return Err(CacheError::CopyOverlaps);
        }
        if d.entries.len() > 0 && d.family != s.family {
            return Err(CacheError::NotInFamily);
        }
        if !d.nodes.is_idle() {
            return Err(CacheError::Unsettled);
        }
        if self.retired(dst)? < d.entries.len() {
            return Err(CacheError::InFlight);
        }
        self.share(src, dst, entries)?;
        self.generation += 1;
        Ok(())
    }

    fn remove(&mut self, seq: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        self.remove_positions(seq, range)
    }

    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError> {
        let family = self.seqs.get(seq)?.family;
        let others = self.seqs.iter().filter(|(id, s)| *id != seq && s.family == family);
        let others: Vec<_> = others.map(|(id, _)| id).collect();
        others.into_iter().try_for_each(|other| self.close(other))?;
        self.generation += 1;
        Ok(())
    }

    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError> {
        let retired = self.retired(seq)?;
        if n > self.seqs.remaining() {
            return Err(CacheError::TooManySequences);
        }
        let mut forks = Vec::new();
        for _ in 0..n {
            let fork = self.open()?;
            self.share(seq, fork, 0..retired)?;
            forks.push(fork);
        }
        self.generation += 1;
        Ok(forks)
    }
}

impl Tree for Cells {
    fn propose(&mut self, seq: SeqId, parents: &[i32]) -> Result<(), CacheError> {
        let s = self.seqs.get_mut(seq)?;
        let positions = Position::MAX - s.entries.next_position() - s.nodes.unsettled();
        if parents.len() as u64 > u64::from(positions) {
            return Err(CacheError::BadClaim);
        }
        s.nodes.make().propose(parents)?;
        self.generation += 1;
        Ok(())
    }

    /// No slot copies: an accepted node's cell becomes the sequence's next one.
    fn commit(&mut self, seq: SeqId, accepted: &[u32]) -> Result<&[SlotCopy], CacheError> {
        let s = self.seqs.get_mut(seq)?;
        s.nodes.check_chain(accepted)?;
        if s.nodes.unsettled() > 0 && s.last_step.is_some_and(|step| self.inflight.is_pending(step)) {
            return Err(CacheError::InFlight);
        }
        let mut chain = accepted.iter().peekable();
        for (node, &slot) in s.node_slots.iter().enumerate() {
            match chain.next_if(|&&accepted| accepted as usize == node) {
                Some(_) => s.entries.push(slot),
                None => self.cells.release(slot),
            }
        }
        s.node_slots.clear();
        s.nodes.get_mut().into_iter().for_each(DraftNodes::settle);
        self.generation += 1;
        Ok(&[])
    }

    fn unsettled(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(seq)?.nodes.unsettled())
    }
}
