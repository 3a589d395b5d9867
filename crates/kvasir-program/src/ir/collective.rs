//! [`Collective`]: how tensor-parallel ranks combine their rows.

use serde::{Deserialize, Serialize};

/// Collective operations of tensor parallelism: how the ranks' partial rows become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// All-reduce, accumulated in rank order: each rank multiplied a slice of the inputs (row
    /// parallel).
    Sum,
    /// All-gather in rank order: each rank computed a slice of the outputs (column parallel). Each
    /// of `n` ranks holds `ceil(width / n)` elements of the result; the last ones may hold fewer.
    Join,
}
