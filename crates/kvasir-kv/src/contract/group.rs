//! Layer groups: sets of layers that need the same cached data of a sequence.
//!
//! | group | cached data | a prefix of length p can be reused if the cache has |
//! |---|---|---|
//! | full | every K/V row | rows `0 .. p` |
//! | window(w) | the last w K/V rows | rows `p - w .. p` |
//! | state | one recurrent state | a checkpoint at p |
//!
//! Group 0 is always full. A layer that reads the K/V of another one needs no group.

use crate::contract::ids::Position;
use serde::{Deserialize, Serialize};

/// The cached data that the layers of a group need of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupKind {
    /// Every K/V row.
    Full,
    /// The K/V rows of the last positions, as many as given.
    Window(u32),
    /// One recurrent state.
    State,
}

/// Number of a layer group, an index into [`Groups`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u8);

impl GroupId {
    /// Number of the full group.
    pub const FULL: Self = Self(0);

    /// The number as an index into [`Slots`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// `count` slots of this group, none of the others.
    pub fn slots(self, count: u32) -> Slots {
        let mut slots = Slots::default();
        slots[self.index()] = count;
        slots
    }
}

/// Maximum number of groups: the full group, the window groups and the state group.
pub const MAX_GROUPS: usize = Groups::MAX_WINDOWS + 2;

/// Number of slots per group: K/V slots, or live states in the state group.
pub type Slots = [u32; MAX_GROUPS];

/// The layer groups of a cache, by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups(Vec<GroupKind>);

/// Only the full group.
impl Default for Groups {
    fn default() -> Self {
        Self(vec![GroupKind::Full])
    }
}

impl Groups {
    /// Maximum number of window groups.
    pub const MAX_WINDOWS: usize = 2;

    /// The full group, then a group per window, then the state group if there is one.
    pub(crate) fn new(windows: &[WindowConfig], has_states: bool) -> Self {
        let windows = windows.iter().map(|config| GroupKind::Window(config.window));
        let states = has_states.then_some(GroupKind::State);
        Self(std::iter::once(GroupKind::Full).chain(windows).chain(states).collect())
    }

    /// The groups with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, GroupKind)> + '_ {
        (0..).map(GroupId).zip(self.0.iter().copied())
    }

    /// Number of the state group, if there is one.
    pub fn states(&self) -> Option<GroupId> {
        self.iter().find(|(_, kind)| *kind == GroupKind::State).map(|(group, _)| group)
    }
}

/// Configuration of a cache's pool for the rows of sliding-window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowConfig {
    /// The window: a query sees this many last positions, its own included.
    pub window: u32,
    /// Slots that may be allocated.
    pub capacity: u32,
    /// Maximum number of draft tokens per sequence and step. The group holds this many more rows,
    /// so that the window is complete after a rejection.
    pub longest_draft: u32,
}

impl WindowConfig {
    /// Number of last rows of a sequence that are not released when a step retires. So the window
    /// is complete after a rewind of drafts, and after a rewind to the last whole block.
    pub(crate) fn kept_rows(&self, block_size: u32) -> u32 {
        (self.window.saturating_sub(1)).saturating_add(self.longest_draft).saturating_add(block_size)
    }

    /// Upper bound of the slots that a sequence holds between steps. A step that writes `c` rows
    /// needs at most `c` more. Two blocks are added because the kept and the new rows together may
    /// begin and end inside a block.
    pub fn slots_per_sequence(&self, block_size: u32) -> u32 {
        self.kept_rows(block_size).saturating_add(block_size.saturating_mul(2))
    }
}

/// Configuration of a cache's pool of recurrent states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateConfig {
    /// Maximum number of live states, and so of sequences that run at the same time.
    pub live: u32,
    /// Maximum number of checkpoints.
    pub checkpoints: u32,
    /// Number of rows of a tail: the maximum number of draft tokens per sequence and step.
    pub tail_rows: u32,
    /// Distance of regular checkpoints in positions, rounded up to whole blocks. 0 for none: a
    /// cache then stores checkpoints only at marks and at the newest block boundaries.
    pub interval: u32,
}

impl StateConfig {
    /// Number of slots of the pool.
    pub fn slots(&self) -> u32 {
        self.live.saturating_add(self.checkpoints)
    }
}

/// Cost of recomputing positions, by which checkpoints are evicted. The unit is arbitrary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecomputeCosts {
    /// Cost per position.
    pub token: u32,
    /// Additional cost per position for each 1,000 positions before it, which attention reads.
    pub depth: u32,
}

/// The cost is the number of positions.
impl Default for RecomputeCosts {
    fn default() -> Self {
        Self { token: 1, depth: 0 }
    }
}

impl RecomputeCosts {
    /// Cost of computing the positions `from .. to`.
    pub(crate) fn recompute(self, from: Position, to: Position) -> u64 {
        let count = u64::from(to.saturating_sub(from));
        let middle = (u64::from(from) + u64::from(to)) / 2;
        count.saturating_mul(u64::from(self.token) + u64::from(self.depth) * middle / 1000)
    }
}

/// Identifies the content of a published block: its tokens and all before them, under one salt.
/// Valid while lookups can find this content, whichever block holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Anchor(pub(crate) u64);
