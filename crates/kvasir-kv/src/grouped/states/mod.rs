//! The pool of recurrent states: which slot holds the state of which sequence at which position.
//!
//! A slot holds one state of each recurrent layer. Every step of a sequence overwrites its *live*
//! state; a *checkpoint* is immutable. Checkpoints are never copied: a step reads one slot and
//! writes another one if the old state must be kept. For positions inside a step, it stores further
//! checkpoints by saves (`StateSection`).
//!
//! Files in reading order:
//!
//! 1. `checkpoint`: a reference to a saved state; `checkpoint_log`: the KV events of checkpoints.
//! 2. `ledger`: reference counts and anchors of the slots, and the eviction of checkpoints, which
//!    `kinetic_tournament` orders; `checkpoint_tree` stores the previous checkpoint of each one.
//! 3. `tail_pool`: allocates the tails, one per sequence with a live state.
//! 4. `sequence`: the live state, checkpoints and marks of a sequence, and where its steps store
//!    checkpoints; `sequences` finds it by id.
//! 5. `in_flight`: the rows of steps in flight.
//! 6. `group`: the cache operations on the states of all sequences; `sharing` has those on shared
//!    checkpoints, `victims` the selection of victims, `check` the consistency check.
//!
//! Must not know: K/V slots, tokens, the primary cache. Guarded by `tests/states/`.

mod check;
pub(crate) mod checkpoint;
pub(crate) mod checkpoint_log;
pub(crate) mod checkpoint_tree;
pub(crate) mod group;
pub(crate) mod in_flight;
pub(crate) mod kinetic_tournament;
pub(crate) mod ledger;
pub(crate) mod sequence;
pub(crate) mod sequences;
mod sharing;
pub(crate) mod tail_pool;
mod victims;
