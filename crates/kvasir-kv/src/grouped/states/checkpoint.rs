//! `Checkpoint`: a sequence's reference to a saved recurrent state.

use crate::contract::ids::{Position, Slot};

/// A saved state: the slot that holds it and the number of tokens that it covers. The reference is
/// stale once the checkpoint is evicted: its slot is free, live, or has another `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) position: Position,
    pub(crate) slot: Slot,
    /// Unique number of the checkpoint, which the ledger issues.
    pub(crate) number: u64,
}
