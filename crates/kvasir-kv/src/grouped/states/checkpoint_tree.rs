//! `CheckpointTree`: the previous checkpoint of each one, of the same prefix, and the checkpoints
//! that follow it, by slot.
//!
//! Prompts that diverge after a checkpoint give it several successors, so the links form a forest.
//! Removing a checkpoint gives its successors to the one before it. Lists of successors are doubly
//! linked through the slots; all memory is allocated at construction. Guarded by
//! `StateLedger::check`.

use crate::contract::ids::Slot;

const NONE: Slot = Slot::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    previous: Slot,
    /// The first of its successors.
    first_next: Slot,
    /// Its neighbors in the list of its previous checkpoint's successors.
    left: Slot,
    right: Slot,
}

const UNLINKED: Links = Links { previous: NONE, first_next: NONE, left: NONE, right: NONE };

/// The links of all slots.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointTree(Vec<Links>);

impl CheckpointTree {
    pub(crate) fn new(slots: u32) -> Self {
        Self(vec![UNLINKED; slots as usize])
    }

    /// Slot of the previous checkpoint.
    pub(crate) fn previous(&self, slot: Slot) -> Option<Slot> {
        Some(self.0[slot as usize].previous).filter(|previous| *previous != NONE)
    }

    /// Sets the previous checkpoint of a slot.
    pub(crate) fn set_previous(&mut self, slot: Slot, previous: Option<Slot>) {
        let Links { previous: old, left, right, .. } = self.0[slot as usize];
        if left != NONE {
            self.0[left as usize].right = right;
        } else if old != NONE {
            self.0[old as usize].first_next = right;
        }
        if right != NONE {
            self.0[right as usize].left = left;
        }
        let previous = previous.unwrap_or(NONE);
        let mut right = NONE;
        if previous != NONE {
            right = std::mem::replace(&mut self.0[previous as usize].first_next, slot);
        }
        if right != NONE {
            self.0[right as usize].left = slot;
        }
        let links = &mut self.0[slot as usize];
        *links = Links { previous, left: NONE, right, ..*links };
    }

    /// Gives the first successor of a slot to its previous checkpoint. Returns the successor, or
    /// `None` if there is none left.
    pub(crate) fn pass_on_next(&mut self, slot: Slot) -> Option<Slot> {
        let Links { previous, first_next, .. } = self.0[slot as usize];
        if first_next == NONE {
            return None;
        }
        self.set_previous(first_next, Some(previous).filter(|previous| *previous != NONE));
        Some(first_next)
    }

    /// Compares the list of successors with the links to the previous checkpoints.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut listed = 0;
        for (slot, links) in (0..).zip(&self.0) {
            let mut at = links.first_next;
            while at != NONE {
                let next = self.0[at as usize];
                if next.previous != slot || next.right != NONE && self.0[next.right as usize].left != at {
                    return Err(format!("state slot {at} is not a successor of {slot}: {next:?}"));
                }
                (at, listed) = (next.right, listed + 1);
            }
        }
        let linked = self.0.iter().filter(|links| links.previous != NONE).count();
        if listed == linked { Ok(()) } else { Err(format!("{linked} successors, {listed} of them listed")) }
    }
}
