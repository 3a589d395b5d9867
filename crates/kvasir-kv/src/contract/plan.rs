//! `Plan`: the attention metadata of one step, with a section per layer group (vLLM: KV cache
//! group).
//!
//! - Group 0 (`full`): layers whose pool has a slot for every position of a sequence.
//! - Window groups (`windows`): sliding-window layers, each group with a pool of its own.
//! - Recurrent layers (`states`): slots of states instead of K and V.
//!
//! If all layers of a model are in group 0, the other sections are empty. `Plan` derefs to `full`.
//!
//! Plain data in deterministic order: a clone is independent of its original, and equal plans have
//! equal vectors. A caller reuses the vectors from step to step.

use crate::contract::group::GroupId;
use crate::contract::ids::{Position, StepId};
use crate::contract::section::Section;
use crate::contract::state_section::StateSection;
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};

/// Attention metadata of one claimed step, for every layer group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The claimed step.
    pub step: StepId,
    /// The cache's generation when it was written; submit refuses a plan that is not current.
    pub generation: u64,
    /// Position of every query token.
    pub positions: Vec<Position>,
    /// Group 0: layers whose pool has a slot for every position.
    pub full: Section,
    /// Groups of sliding-window layers, in the order of their ids. They have the sequences and
    /// queries of `full` in the same order, but their own segments, and no explicit masks.
    pub windows: Vec<Section>,
    /// Recurrent layers.
    pub states: StateSection,
}

impl Plan {
    /// Empties the plan for a step: keeps the memory of `full` and `states`, and removes the window
    /// sections. For plans written by hand; `Cache::plan` does so itself.
    pub fn reset(&mut self, step: StepId, generation: u64) {
        self.step = step;
        self.generation = generation;
        self.positions.clear();
        self.full.reset();
        self.windows.clear();
        self.states.reset();
    }

    /// The section of a group of attention layers, if the plan has one.
    pub fn section(&self, group: GroupId) -> Option<&Section> {
        match group.index().checked_sub(1) {
            None => Some(&self.full),
            Some(window) => self.windows.get(window),
        }
    }

    /// The sections of attention layers: group 0, then the window groups.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        std::iter::once(&self.full).chain(&self.windows)
    }
}

/// Derefs to the section of group 0.
impl Deref for Plan {
    type Target = Section;
    #[inline]
    fn deref(&self) -> &Section {
        &self.full
    }
}

/// Derefs to the section of group 0.
impl DerefMut for Plan {
    #[inline]
    fn deref_mut(&mut self) -> &mut Section {
        &mut self.full
    }
}
