//! [`LookupIndex`]: the row index of a lookup in a position or token-type table.

use serde::{Deserialize, Serialize};

/// The row index of a [lookup](crate::ir::op::Op::Lookup). Indices beyond the table are clamped to
/// its last row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupIndex {
    /// The token's position plus an offset, for learned absolute positions.
    Position {
        /// Row of position 0.
        offset: u32,
    },
    /// The token type (BERT): 1 for tokens of the second text of a pair, else 0.
    TokenType,
}

impl LookupIndex {
    /// The row for the token at `position` of its sequence. `second_text_start` is the position of
    /// the first token of type 1; 0 if all tokens have type 0.
    pub fn row(self, position: u32, second_text_start: u32) -> usize {
        match self {
            Self::Position { offset } => position as usize + offset as usize,
            Self::TokenType => usize::from(second_text_start > 0 && position >= second_text_start),
        }
    }
}
