//! Selection of preemption and eviction victims: which sequences to close so that enough slots come
//! free, computed without changing anything.
//!
//! A slot comes free with its last owner, so the sum of the candidates' lengths overestimates where
//! they share a prefix. `choose` counts in a `TrialRelease`, a model of the cache after
//! hypothetical releases:
//!
//! 1. Close the candidates in the caller's order (typically LRU) until enough slots come free.
//! 2. From the last to the first, keep open each one without which enough slots still come free.
//!
//! Guarded by `tests/victims.rs`, which closes the chosen sequences and compares.

use crate::contract::capabilities::VictimSearch;
use crate::contract::group::GroupId;
use crate::contract::ids::SeqId;

/// A model of a cache after hypothetical releases.
pub(crate) trait TrialRelease {
    /// `seq` releases its rows from `from` on; with `from` 0 it is closed.
    fn release(&mut self, seq: SeqId, from: u32);
    /// Undoes [`TrialRelease::release`] of a closed sequence.
    fn undo_release(&mut self, seq: SeqId);
    /// Slots that have come free.
    fn freed(&self) -> u32;
}

/// Selection by the slots of group 0: greedy, then pruning of superfluous victims; see the module.
/// Returns false, and no victims, if not even all candidates suffice.
pub(crate) fn choose(
    trial: &mut impl TrialRelease,
    search: &VictimSearch<'_>,
    victims: &mut Vec<SeqId>,
) -> bool {
    victims.clear();
    let slots = search.slots[GroupId::FULL.index()];
    if let Some((seq, len)) = search.truncate {
        trial.release(seq, len);
    }
    for &candidate in search.candidates {
        if trial.freed() >= slots {
            break;
        }
        trial.release(candidate, 0);
        victims.push(candidate);
    }
    if trial.freed() < slots {
        victims.clear();
        return false;
    }
    for at in (0..victims.len()).rev() {
        let victim = victims[at];
        trial.undo_release(victim);
        if trial.freed() >= slots {
            victims.remove(at);
        } else {
            trial.release(victim, 0);
        }
    }
    true
}

/// Slots that closing all of these sequences would free.
pub(crate) fn freed_by(trial: &mut impl TrialRelease, sequences: &[SeqId]) -> u32 {
    sequences.iter().for_each(|&seq| trial.release(seq, 0));
    trial.freed()
}

/// Hypothetical change of the owner count, per block or cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerChanges(Vec<i32>);

impl OwnerChanges {
    /// Resets to no change, for `count` blocks.
    pub(crate) fn reset(&mut self, count: usize) {
        self.0.clear();
        self.0.resize(count, 0);
    }

    /// A block gains an owner.
    pub(crate) fn own(&mut self, block: u32) {
        if let Some(change) = self.0.get_mut(block as usize) {
            *change += 1;
        }
    }

    /// A block that really has `owners` owners loses one. Returns whether that was the last.
    pub(crate) fn disown(&mut self, block: u32, owners: u32) -> bool {
        let Some(change) = self.0.get_mut(block as usize) else { return false };
        *change -= 1;
        i64::from(owners) + i64::from(*change) == 0
    }

    /// Undoes [`OwnerChanges::disown`]; returns the same.
    pub(crate) fn undo_disown(&mut self, block: u32, owners: u32) -> bool {
        let Some(change) = self.0.get_mut(block as usize) else { return false };
        let was_last = i64::from(owners) + i64::from(*change) == 0;
        *change += 1;
        was_last
    }
}
