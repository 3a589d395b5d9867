use serde::{Deserialize, Serialize};

/// A value that an op yields and later ops take; a place in [`Program::values`](crate::Program::values).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// What a value holds for each of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// This many numbers.
    Numbers(usize),
    /// This many experts, each with the share it has in the result.
    Routes(usize),
    /// The entries of the row's read that its query may attend to.
    Selection,
}

/// Which rows a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// One per token of the step.
    Tokens,
    /// One per token whose logits are wanted.
    Sampled,
}

/// One value: every op makes exactly one, and none is written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// What a row holds.
    pub holds: Holds,
    /// Which rows there are.
    pub rows: Rows,
}

impl Value {
    /// Numbers in a row; 0 for what is no row of numbers.
    pub fn width(&self) -> usize {
        match self.holds {
            Holds::Numbers(n) => n,
            Holds::Routes(_) | Holds::Selection => 0,
        }
    }
}
