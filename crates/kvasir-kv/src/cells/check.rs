//! Inspection of `Cells`. The consistency check recounts owners and leases of every cell from
//! sequences and steps in flight.

use crate::cells::{Cells, Written};
use crate::contract::capabilities::Inspect;
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, SeqId};
use crate::contract::usage::BlockUse;

impl Inspect for Cells {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        blocks.clear();
        blocks.extend((0..self.cells.high_water()).map(|slot| self.cells.visit_blocks(slot)));
        self.moves.lease_sources(blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        let sequence = self.seqs.get(seq)?;
        sequence.entries.slots().copy(0..u32::MAX, into);
        into.extend_from_slice(&sequence.node_slots);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let mut named = vec![(0, 0, None); self.cells.high_water() as usize];
        let outside = |slot| format!("cell {slot} is owned and above the high water");
        for (seq, s) in self.seqs.iter() {
            s.entries.check().map_err(|why| format!("sequence {}: {why}", seq.0))?;
            if s.node_slots.len() as u32 != s.nodes.unsettled() {
                return Err(format!("sequence {}: its lengths do not add up", seq.0));
            }
            let base = s.entries.next_position();
            let nodes = s.node_slots.iter().zip(0..).map(|(&slot, node)| (base + s.nodes.depth(node), slot));
            for (position, slot) in s.entries.iter(0..s.entries.len()).chain(nodes) {
                let entry = named.get_mut(slot as usize).ok_or_else(|| outside(slot))?;
                *entry = (entry.0 + 1, entry.1, Some(position));
            }
        }
        for flight in self.inflight.iter() {
            for &slot in &flight.releases {
                named.get_mut(slot as usize).ok_or_else(|| outside(slot))?.1 += 1;
            }
            for row in flight.rows.iter().filter(|row| row.written == Written::Positions) {
                let next = self.seqs.get(row.seq).map(|s| s.entries.next_position());
                if next.is_ok_and(|next| row.end > next) {
                    return Err(format!("step {} publishes more than is claimed", flight.step.0));
                }
            }
        }
        self.cells.check(&named)
    }
}
