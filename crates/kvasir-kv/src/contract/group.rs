//! Layer groups: layers by what they remember of a sequence.
//!
//! | group | remembers | a prefix of length p can be reused if |
//! |---|---|---|
//! | full | every K/V row | rows `0 .. p` are there |
//! | window(w) | the last w rows | rows `p - w .. p` are there |
//! | state | one recurrent state | a checkpoint at p is there |
//!
//! Group 0 is always full. A layer that reads the K/V of another one needs no group.

use crate::contract::ids::Position;
use serde::{Deserialize, Serialize};

/// What the layers of a group remember of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupKind {
    /// Every K/V row.
    Full,
    /// The K/V rows of so many last positions.
    Window(u32),
    /// One recurrent state.
    State,
}

/// The number of a layer group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u8);

impl GroupId {
    /// The full group.
    pub const FULL: Self = Self(0);
}

/// The layer groups of a cache, by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups(Vec<GroupKind>);

/// The full group alone.
impl Default for Groups {
    fn default() -> Self {
        Self(vec![GroupKind::Full])
    }
}

impl Groups {
    /// The full group, and a group of recurrent states.
    pub(crate) fn with_states() -> Self {
        Self(vec![GroupKind::Full, GroupKind::State])
    }

    /// The groups with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, GroupKind)> + '_ {
        (0..).map(GroupId).zip(self.0.iter().copied())
    }

    /// The group of recurrent states, if there is one.
    pub fn states(&self) -> Option<GroupId> {
        self.iter().find(|(_, kind)| *kind == GroupKind::State).map(|(group, _)| group)
    }
}

/// Sizes of the pool of recurrent states of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// Sequences that may run at the same time, each with a state of its own that it rewrites.
    pub live: u32,
    /// Most checkpoints: states that are kept as they are.
    pub checkpoints: u32,
    /// Draft tokens per sequence and step whose inputs the tail takes.
    pub tail_rows: u32,
    /// Distance of checkpoints in a long sequence, in positions; rounded up to whole blocks. 0: none
    /// but those that are marked.
    pub interval: u32,
}

impl StateConfig {
    /// Slots of the pool.
    pub fn slots(&self) -> u32 {
        self.live.saturating_add(self.checkpoints)
    }
}

/// Time that losing a checkpoint costs, in any unit: `token` per position, and `depth` more per
/// position for each 1,000 positions before it (attention reads them).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCosts {
    /// Per position.
    pub token: u32,
    /// Per position and 1,000 positions before it.
    pub depth: u32,
}

/// Checkpoints are worth their distance alone.
impl Default for StateCosts {
    fn default() -> Self {
        Self { token: 1, depth: 0 }
    }
}

impl StateCosts {
    /// Cost of computing the positions `from .. to`.
    pub(crate) fn recompute(self, from: Position, to: Position) -> u64 {
        let count = u64::from(to.saturating_sub(from));
        let middle = (u64::from(from) + u64::from(to)) / 2;
        count.saturating_mul(u64::from(self.token) + u64::from(self.depth) * middle / 1000)
    }
}

/// Names the content of a published block: its tokens and all before them, under one salt. Stays
/// valid while lookups can find the content, whichever block holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor(pub(crate) u64);
