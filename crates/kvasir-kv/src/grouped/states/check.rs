//! Consistency check of `StateGroup`: recounts every reference of lists and steps in flight.

use crate::contract::ids::Slot;
use crate::grouped::states::group::StateGroup;
use crate::grouped::states::ledger::StateUses;

impl StateGroup {
    /// Recounts every reference, and checks the lists of all sequences.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut uses = vec![StateUses::default(); self.ledger.bound() as usize];
        let mut taken = Vec::new();
        for (seq, sequence) in self.seqs.iter().flatten() {
            let current =
                || sequence.checkpoints.iter().filter(|checkpoint| self.ledger.is_current(checkpoint));
            current().for_each(|checkpoint| uses[checkpoint.slot as usize].owners += 1);
            if !sequence.checkpoints.is_sorted_by(|a, b| a.at < b.at) {
                return Err(format!("checkpoints of {seq:?} {:?}", sequence.checkpoints));
            }
            if sequence.checkpoints.last().is_some_and(|last| last.at > sequence.end()) {
                return Err(format!("{seq:?} ends at {} before a checkpoint", sequence.end()));
            }
            taken.extend(sequence.seat);
            let Some(live) = sequence.live else { continue };
            let counted = &mut uses[live.slot as usize];
            if live.is_sealed {
                counted.ends += 1
            } else {
                counted.owners += 1
            }
            if live.is_sealed
                && !current().any(|checkpoint| (checkpoint.slot, checkpoint.at) == (live.slot, live.at))
            {
                return Err(format!("{seq:?} continues from no checkpoint: {live:?}"));
            }
            if !live.is_sealed && sequence.seat.is_none() {
                return Err(format!("{seq:?} has a live state and no seat"));
            }
        }
        let mut leased = Vec::new();
        for flight in self.in_flight.iter() {
            for row in &flight.rows {
                let named = row.before.map(|live| live.slot).into_iter();
                let named = named.chain((row.row.commit > 0).then_some(row.row.to));
                let named = named.chain(flight.saves_of(row).iter().map(|save| save.slot));
                named.for_each(|slot: Slot| uses[slot as usize].leases += 1);
                leased.push(row.row.tail);
            }
        }
        self.ledger.check(&uses)?;
        self.seats.check(&taken, &leased)
    }
}
