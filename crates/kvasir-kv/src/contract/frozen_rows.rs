//! `FrozenRows`: the rows and recurrent states that a shared prefix takes from a cache.

use crate::contract::ids::{Position, Slot};

/// The rows and recurrent states of the only sequence of a cache, which a
/// [`SharedPrefix`](crate::SharedPrefix) can freeze.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrozenRows {
    /// Number of rows; row `i` lies in slot `i`.
    pub rows: u32,
    /// Recurrent states in order of position: the number of rows that each covers, and its slot.
    pub states: Vec<(Position, Slot)>,
}
