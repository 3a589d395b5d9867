//! `StateSection`: where a step reads and writes the recurrent states of its sequences.
//!
//! A state slot holds one state of each recurrent layer, at one position of one sequence. A row
//! reads the state of slot `from`, applies the recurrence to its inputs in order of position, and
//! writes the resulting state to slot `to`. `from` and `to` are the same slot unless the old state
//! is kept as a checkpoint, so a checkpoint is never copied.
//!
//! Draft tokens do not change the state until they are accepted: the executor stores their inputs
//! to the recurrence in a *tail*, one tail row per draft token, and a later step replays those that
//! were accepted.
//!
//! The *inputs* of a row, in order: the first `replay` rows of the tail, then the queries of the
//! batch row without its first `skip` queries. `commit` and `StateSave::after` are numbers of
//! inputs:
//!
//! - Slot `to` receives the state after the first `commit` inputs.
//! - Each save writes the state after the first `after` inputs to another slot.
//! - The inputs after `commit` are draft tokens; the executor writes them to the tail of slot
//!   `tail`, from row 0.
//!
//! Invariant: if a row of a step writes a slot (`to`, save or tail), no other row of the step reads
//! or writes that slot. So the rows may run in any order or concurrently.

use crate::contract::ids::{PoolId, Slot};
use crate::contract::span::Span;
use serde::{Deserialize, Serialize};

/// One batch row of a step in the pool of recurrent states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRow {
    /// Pool and slot of the state before the first input; `None` for the initial state, all zeros.
    /// Pools other than 0 are those of shared prefixes, as in a segment.
    pub from: Option<(PoolId, Slot)>,
    /// Slot that receives the state after `commit` inputs. Unused if `commit` is 0.
    pub to: Slot,
    /// Slot of the sequence's tail, which stores the inputs of draft tokens.
    pub tail: Slot,
    /// Number of tail rows, from row 0, that are inputs before the queries.
    pub replay: u32,
    /// Number of leading queries that are not inputs: redirected ones, which `from` covers already.
    /// No later row reads their outputs.
    pub skip: u32,
    /// Number of inputs that `to` covers; the others are draft tokens. At least `replay`; 0 for a
    /// dummy row.
    pub commit: u32,
    /// The row's saves, as a range of [`StateSection::saves`].
    pub saves: Span,
}

impl StateRow {
    /// Slot `from`, if it is in the executor's own pool and not in that of a shared prefix.
    pub fn own_from(&self) -> Option<Slot> {
        self.from.filter(|(pool, _)| *pool == PoolId(0)).map(|(_, slot)| slot)
    }
}

/// A checkpoint that a step writes after some of a row's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSave {
    /// Number of inputs that it covers, from 1 to the row's `commit`. Increases within a row.
    pub after: u32,
    /// Slot that receives the state.
    pub slot: Slot,
}

/// The recurrent states of one step; empty if the model has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSection {
    /// One row per batch row, in the order of the plan's rows.
    pub rows: Vec<StateRow>,
    /// The saves of all rows.
    pub saves: Vec<StateSave>,
    /// Exclusive upper bound of every state slot that is read or written.
    pub bound: Slot,
}

impl StateSection {
    /// Whether the step uses no states.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Empties the section, keeping its memory.
    pub fn reset(&mut self) {
        self.rows.clear();
        self.saves.clear();
        self.bound = 0;
    }
}
