//! `MemoryHints` of `cells`. `compact` defragments: a new layout, sequence after sequence in order of position, carried
//! out by slot copies in the next plan.
//!
//! Refused while a step is in flight. Afterwards a single sequence is one run from cell 0, which
//! makes its plans contiguous again.

use crate::cells::Cells;
use crate::contract::capabilities::MemoryHints;
use crate::contract::error::CacheError;
use crate::contract::ids::{SeqId, Slot};
use crate::contract::section::SlotCopy;

impl MemoryHints for Cells {
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        let tokens = tokens.min(self.shape.capacity) as usize;
        if let Ok(seq) = self.seqs.get_mut(seq) {
            seq.entries.reserve(tokens);
        }
    }

    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        self.writer.reserve(blocks, rows);
    }

    /// Computes a new layout, sequence after sequence in order of position; a shared cell goes with
    /// its first owner. Queues the slot copies and returns their number.
    fn compact(&mut self) -> Result<u32, CacheError> {
        if !self.inflight.is_empty() {
            return Err(CacheError::InFlight);
        }
        let (to, used) = self.layout();
        let moved = to.iter().zip(0..).filter_map(|(&to, from)| Some(SlotCopy { from, to: to? }));
        let moves: Vec<_> = moved.filter(|m| m.from != m.to).collect();
        if moves.is_empty() {
            return Ok(0);
        }
        let place = |slot: Slot| to.get(slot as usize).copied().flatten().unwrap_or(slot);
        for s in self.seqs.values_mut() {
            s.entries.relabel(place);
            s.node_slots.iter_mut().for_each(|slot| *slot = place(*slot));
        }
        self.cells.relabel(&to, used);
        self.moves.push(&moves);
        self.generation += 1;
        Ok(moves.len() as u32)
    }
}

impl Cells {
    /// The new slot of every cell in use, and their number.
    fn layout(&self) -> (Vec<Option<Slot>>, u32) {
        let mut to = vec![None; self.cells.high_water() as usize];
        let mut used = 0;
        for (_, s) in self.seqs.iter() {
            for slot in s.entries.slots().iter().chain(s.node_slots.iter().copied()) {
                let place = &mut to[slot as usize];
                if place.is_none() {
                    *place = Some(used);
                    used += 1;
                }
            }
        }
        (to, used)
    }
}
