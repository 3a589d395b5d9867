//! `Plan`: the attention metadata of one step, a section per layer group.
//!
//! The section of group 0 (`full`) has a slot per position; window groups have sections of the same
//! form over pools of their own, and recurrent layers a `StateSection`. A model whose layers are all
//! in group 0 has no others. `Plan` derefs to `full`.
//!
//! Plain data in deterministic order: a clone is independent of its original, and two plans are
//! equal if they say the same in the same places. A caller reuses the vectors from step to step.

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
    /// Group 0: layers that attend to every position.
    pub full: Section,
    /// Groups of sliding-window layers, in the order of their ids. Their rows are those of `full`,
    /// with reads of their own and without explicit masks.
    pub windows: Vec<Section>,
    /// Recurrent layers.
    pub states: StateSection,
}

impl Plan {
    /// Empties the plan for a step, keeping the memory of `full` and `states`; it has no window
    /// sections then. For plans written by hand; `Cache::plan` does so itself.
    pub fn reset(&mut self, step: StepId, generation: u64) {
        self.step = step;
        self.generation = generation;
        self.positions.clear();
        self.full.reset();
        self.windows.clear();
        self.states.reset();
    }

    /// The sections of all groups with K and V, group 0 first.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        std::iter::once(&self.full).chain(&self.windows)
    }
}

/// The section of group 0.
impl Deref for Plan {
    type Target = Section;
    #[inline]
    fn deref(&self) -> &Section {
        &self.full
    }
}

/// The section of group 0.
impl DerefMut for Plan {
    #[inline]
    fn deref_mut(&mut self) -> &mut Section {
        &mut self.full
    }
}
