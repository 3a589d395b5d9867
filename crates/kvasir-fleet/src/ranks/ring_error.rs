//! [`RingError`]: why a rank stops waiting for another one.

use std::fmt;

/// Why a rank stops waiting for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RingError {
    /// The group has lost this rank.
    Lost(usize),
    /// The rank has aborted the step, before its first collective.
    Aborted(usize),
    /// What the rank has written is not what was expected.
    Garbled {
        /// The rank.
        rank: usize,
        /// What differs.
        why: String,
    },
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(rank) => write!(f, "rank {rank} has ended"),
            Self::Aborted(rank) => write!(f, "rank {rank} has aborted the step"),
            Self::Garbled { rank, why } => write!(f, "rank {rank} is out of step: {why}"),
        }
    }
}

impl std::error::Error for RingError {}
