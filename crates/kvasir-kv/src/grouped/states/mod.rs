//! Recurrent states of a cache: which slot of the state pool holds the state of which sequence at
//! which position.
//!
//! A slot holds one state of each recurrent layer. A *live* state is rewritten by every step of its
//! sequence; a *checkpoint* is kept as it is. Checkpoints are never copied: a step reads the state
//! of one slot and writes another one if the old state is to be kept. It stores the states at
//! positions inside it by saves (`StateSection`).
//!
//! Files in reading order:
//!
//! 1. `checkpoint`: one entry of a sequence's list.
//! 2. `ledger`: owners, leases and anchors per slot, and which checkpoint is evicted.
//! 3. `seats`: the right of a sequence to a live state.
//! 4. `sequence`: the live state, checkpoints and marks of a sequence, and where it stores more.
//! 5. `in_flight`: the rows of steps in flight.
//! 6. `group`: the operations of a cache on the states of all its sequences; `sharing` and `check`
//!    continue it.
//!
//! Must not know: K/V slots, tokens, the primary cache. Guarded by `tests/states/`.

mod check;
pub(crate) mod checkpoint;
pub(crate) mod group;
pub(crate) mod in_flight;
pub(crate) mod ledger;
pub(crate) mod seats;
pub(crate) mod sequence;
mod sharing;
