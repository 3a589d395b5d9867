//! Access to the groups of `Grouped`, and the lengths at which all of them can continue.

use crate::contract::capabilities::Hit;
use crate::contract::error::CacheError;
use crate::contract::group::{GroupId, Slots};
use crate::contract::ids::{Position, SeqId, Token};
use crate::grouped::Grouped;
use crate::grouped::window_group::WindowGroup;

impl Grouped {
    /// The window group with a number.
    pub(super) fn window(&self, group: GroupId) -> Option<&WindowGroup> {
        self.windows.get(group.index().checked_sub(1)?)
    }

    /// Unlinks the window blocks and checkpoints of evicted blocks. The primary may reuse their
    /// anchors, so this precedes every other use of anchors.
    pub(super) fn unlink_evicted(&mut self) {
        self.anchors.clear();
        if let Some(anchors) = self.primary.anchors() {
            anchors.take_unpublished(&mut self.anchors);
        }
        self.windows.iter_mut().for_each(|window| window.unlink(&self.anchors));
        if let Some(states) = &mut self.states {
            states.unlink(&self.anchors);
        }
    }

    /// Looks up a prompt in the primary cache; leaves the anchors of its blocks in `self.anchors`.
    pub(super) fn match_prompt(&mut self, tokens: &[Token], salt: u64) -> Result<Hit, CacheError> {
        self.unlink_evicted();
        self.anchors.clear();
        let matched = self.primary.prefix()?.lookup(tokens, salt);
        if let Some(anchors) = self.primary.anchors() {
            anchors.matched(&mut self.anchors);
        }
        self.windows.iter_mut().for_each(|window| window.match_anchors(&self.anchors));
        Ok(matched)
    }

    /// Length in blocks of the longest matched prefix, at most `limit` blocks, at which every group
    /// can continue.
    pub(super) fn usable_blocks(&self, limit: u32) -> u32 {
        let states = self.states.as_ref();
        let is_usable = |blocks: &u32| {
            let last = (*blocks as usize).checked_sub(1).map(|last| self.anchors[last]);
            let has_state = states.zip(last).is_none_or(|(states, last)| states.has_checkpoint(last));
            has_state && self.windows.iter().all(|window| window.caches_window_before(*blocks))
        };
        let matched = (self.anchors.len() as u32).min(limit);
        (0..=matched).rev().find(is_usable).unwrap_or_default()
    }

    /// Unreferenced slots per group of a hit that ends with the last block of `self.anchors`.
    /// `primary` has the slots of the primary.
    pub(super) fn evictable_slots(&mut self, primary: Slots) -> Slots {
        let mut slots = primary;
        for (count, window) in slots.iter_mut().skip(1).zip(&mut self.windows) {
            *count = window.evictable_slots(&self.anchors);
        }
        slots
    }

    /// `len` if every window group holds the rows that a query at this position sees, else 0. If
    /// window rows before a length were released, so were those before all smaller lengths. Only
    /// length 0 needs none.
    pub(super) fn window_floor(&self, seq: SeqId, len: Position) -> Result<Position, CacheError> {
        self.windows.iter().try_fold(len, |len, window| window.floor(seq, len))
    }

    /// The greatest length up to `to` at which the sequence has a state; `to` without states.
    fn state_floor(&self, seq: SeqId, to: Position) -> Result<Position, CacheError> {
        self.states.as_ref().map_or(Ok(to), |states| states.floor(seq, to))
    }

    /// The greatest length up to `to` at which every group can continue.
    pub(super) fn floor(&self, seq: SeqId, to: Position) -> Result<Position, CacheError> {
        self.window_floor(seq, self.state_floor(seq, to)?)
    }

    /// Refuses a length at which not every group can continue: with `NoCheckpoint` if no state is
    /// there, else with `WindowReleased`.
    pub(super) fn check_floor(&self, seq: SeqId, to: Position) -> Result<(), CacheError> {
        let state_floor = self.state_floor(seq, to)?;
        let nearest = self.window_floor(seq, state_floor)?;
        match nearest {
            _ if nearest == to => Ok(()),
            _ if state_floor < to => Err(CacheError::NoCheckpoint { to, nearest }),
            _ => Err(CacheError::WindowReleased { to, nearest }),
        }
    }

    /// Position after the last retired row of a sequence.
    pub(super) fn retired_end(&self, seq: SeqId) -> Result<Position, CacheError> {
        // Without windows there are states. They allow no holes, so the length is the end position.
        self.windows.first().map_or_else(|| self.primary.len(seq), |window| window.retired_end(seq))
    }
}
