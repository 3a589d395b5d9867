//! [`LookupIndex`]: what selects the row of a table that is not the token embedding.

use serde::{Deserialize, Serialize};

/// What selects the row of a [lookup](crate::ir::op::Op::Lookup). Indices beyond the table select its
/// last row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupIndex {
    /// Learned absolute positions: the token's position plus an offset.
    Position {
        /// Row of position 0.
        offset: u32,
    },
    /// Token types (BERT): 1 for tokens of the second text of a pair, else 0.
    Segment,
}

impl LookupIndex {
    /// The row, for a token at `position` of a sequence whose second text starts at `second_text`; 0
    /// there means that it has one text only.
    pub fn row(self, position: u32, second_text: u32) -> usize {
        match self {
            Self::Position { offset } => position as usize + offset as usize,
            Self::Segment => usize::from(second_text > 0 && position >= second_text),
        }
    }
}
