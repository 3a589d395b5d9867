//! `CheckpointTree`: the checkpoints as a forest, by slot. The parent of a checkpoint is the
//! previous one of the same prefix.
//!
//! A checkpoint has several children if prompts diverge after it. When it is removed, its parent
//! takes over its children. Siblings are in a doubly linked list through the slots; all memory is
//! allocated at construction. Guarded by `StateLedger::check`.

use crate::contract::ids::Slot;

const NONE: Slot = Slot::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    parent: Slot,
    first_child: Slot,
    left_sibling: Slot,
    right_sibling: Slot,
}

const UNLINKED: Links = Links { parent: NONE, first_child: NONE, left_sibling: NONE, right_sibling: NONE };

/// The links of all slots.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointTree(Vec<Links>);

impl CheckpointTree {
    pub(crate) fn new(slots: u32) -> Self {
        Self(vec![UNLINKED; slots as usize])
    }

    /// Slot of the parent.
    pub(crate) fn parent(&self, slot: Slot) -> Option<Slot> {
        Some(self.0[slot as usize].parent).filter(|parent| *parent != NONE)
    }

    /// Moves a slot from its parent's children to the first place among those of `parent`.
    pub(crate) fn set_parent(&mut self, slot: Slot, parent: Option<Slot>) {
        let Links { parent: old, left_sibling: left, right_sibling: right, .. } = self.0[slot as usize];
        if left != NONE {
            self.0[left as usize].right_sibling = right;
        } else if old != NONE {
            self.0[old as usize].first_child = right;
        }
        if right != NONE {
            self.0[right as usize].left_sibling = left;
        }
        let parent = parent.unwrap_or(NONE);
        let mut right_sibling = NONE;
        if parent != NONE {
            right_sibling = std::mem::replace(&mut self.0[parent as usize].first_child, slot);
        }
        if right_sibling != NONE {
            self.0[right_sibling as usize].left_sibling = slot;
        }
        let links = &mut self.0[slot as usize];
        *links = Links { parent, left_sibling: NONE, right_sibling, ..*links };
    }

    /// Makes the first child of a slot a child of the slot's parent. Returns it, or `None` if the
    /// slot has no child.
    pub(crate) fn pass_on_child(&mut self, slot: Slot) -> Option<Slot> {
        let Links { parent, first_child, .. } = self.0[slot as usize];
        if first_child == NONE {
            return None;
        }
        self.set_parent(first_child, Some(parent).filter(|parent| *parent != NONE));
        Some(first_child)
    }

    /// Compares the lists of children with the links to parents.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut listed = 0;
        for (slot, links) in (0..).zip(&self.0) {
            let mut at = links.first_child;
            while at != NONE {
                let child = self.0[at as usize];
                let right = child.right_sibling;
                if child.parent != slot || right != NONE && self.0[right as usize].left_sibling != at {
                    return Err(format!("state slot {at} is not a child of {slot}: {child:?}"));
                }
                (at, listed) = (right, listed + 1);
            }
        }
        let linked = self.0.iter().filter(|links| links.parent != NONE).count();
        if listed == linked { Ok(()) } else { Err(format!("{linked} children, {listed} of them listed")) }
    }
}
