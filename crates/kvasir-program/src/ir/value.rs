//! The values of a program: what each row holds, and which rows exist.

use serde::{Deserialize, Serialize};

/// A value that an op makes and later ops read; an index into
/// [`Program::values`](crate::ir::program::Program::values).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// The contents of one row of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// This many elements.
    Numbers(usize),
    /// This many experts, each with its weight (MoE routing).
    Routes(usize),
    /// The KV entries that the row's query may attend to (sparse attention).
    Selection,
}

/// The rows of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One per token of the step.
    Tokens,
    /// One per token whose logits are wanted.
    Sampled,
}

/// One value in SSA form: made by exactly one op, never written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Contents of a row.
    pub holds: Holds,
    /// Which rows exist.
    pub rows: Rows,
}

impl Value {
    /// Elements per row; 0 for routes and selections.
    pub fn width(&self) -> usize {
        match self.holds {
            Holds::Numbers(n) => n,
            Holds::Routes(_) | Holds::Selection => 0,
        }
    }
}
