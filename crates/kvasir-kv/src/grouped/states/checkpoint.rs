//! `Checkpoint`: a sequence's reference to a state that is kept.

use crate::contract::ids::{Position, Slot};

/// A kept state: the slot that holds it and the number of tokens that it covers. Once the state is
/// evicted, the slot has another `number` and the reference is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) at: Position,
    pub(crate) slot: Slot,
    /// Number of the checkpoint; no two have the same.
    pub(crate) number: u64,
}
