//! `StateSection`: where a step reads and writes the recurrent states of its sequences.
//!
//! A state slot holds one state of each recurrent layer, at one position of one sequence. A row
//! reads the state of slot `from`, feeds its tokens to the recurrence in order of position, and
//! writes the state that results to slot `to`. `from` and `to` are one slot unless the old state
//! is to be kept, so a checkpoint is never copied.
//!
//! The *inputs* of a row, in order: `replay` rows of the tail that an earlier step wrote, then the
//! queries of the batch row without its first `skip` ones. `commit` and `StateSave::after` count
//! inputs:
//!
//! - `to` gets the state after `commit` of them.
//! - Each save stores the state after `after` of them in one more slot.
//! - The inputs after `commit` are draft tokens: the executor writes them to the tail rows
//!   `0 ..` of slot `tail`. Once some are accepted, a later step replays those.
//!
//! A slot that one row of a step writes is named by no other row of it, neither as `to`, save or
//! tail nor as `from`. So the rows may run in any order, or beside each other.

use crate::contract::ids::Slot;
use crate::contract::span::{PoolId, Span};
use serde::{Deserialize, Serialize};

/// One batch row of a step in the pool of recurrent states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRow {
    /// State before the first input; `None`: the initial state, all zeros.
    pub from: Option<(PoolId, Slot)>,
    /// Slot that gets the state after `commit` inputs. Unused if `commit` is 0.
    pub to: Slot,
    /// Tail of the sequence: the inputs of its draft tokens.
    pub tail: Slot,
    /// Tail rows, from 0, that precede the queries.
    pub replay: u32,
    /// Leading queries that are no inputs: redirected ones, which `from` covers already. No later
    /// row reads their outputs.
    pub skip: u32,
    /// Inputs that `to` covers; the others are drafts. At least `replay`; 0 for a dummy row.
    pub commit: u32,
    /// Its saves, as a range of [`StateSection::saves`].
    pub saves: Span,
}

/// A checkpoint that a step stores while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSave {
    /// Number of inputs that it covers, from 1 to the row's `commit`. Rising within a row.
    pub after: u32,
    /// Slot that gets the state.
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
