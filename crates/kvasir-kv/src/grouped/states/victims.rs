//! Victim selection among live states: a closed sequence releases its tail, and with it a live
//! state, unless a step in flight leases the tail.

use crate::contract::capabilities::VictimSearch;
use crate::contract::group::GroupId;
use crate::contract::ids::SeqId;
use crate::grouped::states::group::StateGroup;

impl StateGroup {
    /// Selects the first candidates that hold enough tails. Returns false, and no victims, if all
    /// of them hold too few. `search.slots` has the number of tails at the index of the full group.
    pub(crate) fn victims(&self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let (slots, leased_too) = (search.slots[GroupId::FULL.index()], search.leased_too);
        victims.clear();
        let holds = |seq: &SeqId| self.tails_held_by(&[*seq], leased_too) > 0;
        let truncated = search.truncate.filter(|(seq, len)| *len == 0 && holds(seq));
        let needed = slots.saturating_sub(u32::from(truncated.is_some())) as usize;
        victims.extend(search.candidates.iter().copied().filter(holds).take(needed));
        let is_enough = victims.len() == needed;
        if !is_enough {
            victims.clear();
        }
        is_enough
    }

    /// Number of tails that these sequences hold; tails that a step in flight leases only count if
    /// `leased_too`.
    pub(crate) fn tails_held_by(&self, sequences: &[SeqId], leased_too: bool) -> u32 {
        let tails = sequences.iter().filter_map(|&seq| self.seqs.get(seq).ok()?.tail);
        tails.filter(|&tail| leased_too || !self.tails.is_leased(tail)).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::cache::ClaimRow;
    use crate::contract::group::StateConfig;
    use crate::contract::ids::StepId;

    #[test]
    fn victims_are_the_first_candidates_with_free_tails() {
        let config = StateConfig { live: 3, checkpoints: 0, tail_rows: 1, interval: 0 };
        let mut states = StateGroup::new(GroupId(1), config, 4).unwrap();
        let seqs = [0, 1, 2, 3].map(|index| SeqId::new(index, 1));
        seqs.iter().for_each(|&seq| states.open(seq));
        for (step, seq) in (1..).zip([seqs[1], seqs[2], seqs[3]]) {
            states.claim(StepId(step), &[ClaimRow::new(seq, 2)]);
            if seq != seqs[3] {
                states.retire(StepId(step));
            }
        }
        let mut victims = Vec::new();
        let mut search = |slots, leased_too, truncate| {
            let slots = GroupId::FULL.slots(slots);
            let search = VictimSearch {
                slots,
                candidates: &seqs[..],
                leased_too,
                truncate,
                ..VictimSearch::default()
            };
            states.victims(&search, &mut victims).then(|| victims.clone())
        };
        // The first sequence holds no tail, and a step in flight leases that of the last.
        assert_eq!(search(1, false, None), Some(vec![seqs[1]]));
        assert_eq!(search(3, false, None), None);
        assert_eq!(search(3, true, None), Some(seqs[1..].to_vec()));
        let truncate = Some((seqs[2], 0));
        let search = VictimSearch {
            slots: GroupId::FULL.slots(2),
            candidates: &seqs[..2],
            truncate,
            ..VictimSearch::default()
        };
        assert!(states.victims(&search, &mut victims));
        assert_eq!((victims, states.tails_held_by(&seqs, true)), (vec![seqs[1]], 3));
    }
}
