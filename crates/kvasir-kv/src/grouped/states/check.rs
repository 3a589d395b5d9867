//! Consistency check of `StateGroup`: recounts the references that sequences and steps in flight
//! hold.

use crate::grouped::states::group::StateGroup;
use crate::grouped::states::ledger::StateUses;

impl StateGroup {
    /// Recounts every reference, and checks the lists of all sequences.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut uses = vec![StateUses::default(); self.ledger.bound() as usize];
        let mut taken = Vec::new();
        for (seq, sequence) in self.seqs.iter() {
            let current =
                || sequence.checkpoints.iter().filter(|checkpoint| self.ledger.is_current(checkpoint));
            current().for_each(|checkpoint| uses[checkpoint.slot as usize].owners += 1);
            if !sequence.checkpoints.is_sorted_by(|a, b| a.position < b.position) {
                return Err(format!("the checkpoints of {seq:?} are not sorted: {:?}", sequence.checkpoints));
            }
            if sequence.checkpoints.last().is_some_and(|last| last.position > sequence.covered_len()) {
                return Err(format!("{seq:?} has a checkpoint above its length {}", sequence.covered_len()));
            }
            taken.extend(sequence.tail);
            let Some(live) = sequence.live else { continue };
            let counted = &mut uses[live.slot as usize];
            if live.is_sealed {
                counted.pins += 1
            } else {
                counted.owners += 1
            }
            if live.is_sealed
                && !current()
                    .any(|checkpoint| (checkpoint.slot, checkpoint.position) == (live.slot, live.position))
            {
                return Err(format!("the sealed live state of {seq:?} is not in its list: {live:?}"));
            }
            if !live.is_sealed && sequence.tail.is_none() {
                return Err(format!("{seq:?} has a live state and no tail"));
            }
        }
        let mut leased = Vec::new();
        for flight in self.in_flight.iter() {
            for row in &flight.rows {
                let read = row.live_before.map(|live| live.slot);
                let named = read.into_iter().chain(flight.writes_of(row));
                named.for_each(|slot| uses[slot as usize].leases += 1);
                leased.push(row.planned.tail);
            }
        }
        self.ledger.check(&uses)?;
        self.tails.check(&taken, &leased)
    }
}
