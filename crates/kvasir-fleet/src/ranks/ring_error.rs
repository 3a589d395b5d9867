//! [`RingError`]: errors of the broadcast ring and of the collectives.

use std::fmt;

/// An error of the broadcast ring or of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RingError {
    /// This rank has ended.
    Lost(usize),
    /// This rank has aborted the step before its first collective.
    Aborted(usize),
    /// The rank's shared state is corrupt, or does not match the reader's step or collective.
    OutOfStep {
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
            Self::OutOfStep { rank, why } => write!(f, "rank {rank} is out of step: {why}"),
        }
    }
}

impl std::error::Error for RingError {}
