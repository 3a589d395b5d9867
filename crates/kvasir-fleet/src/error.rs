//! [`FleetError`]: why a fleet cannot start.

use std::{fmt, io};
use zeromq::ZmqError;

/// Why a fleet cannot start.
#[derive(Debug)]
pub enum FleetError {
    /// The socket directory, a process or a thread cannot be created.
    Io(io::Error),
    /// The sockets cannot be bound.
    Socket(ZmqError),
    /// A worker ended before it was ready.
    Ended {
        /// Index of the replica.
        replica: usize,
        /// How its process ended.
        why: String,
    },
    /// A worker does not match the front's [`Identity`].
    Refused {
        /// Index of the replica.
        replica: usize,
        /// What differs.
        why: String,
    },
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "workers: {error}"),
            Self::Socket(error) => write!(f, "workers: sockets: {error}"),
            Self::Ended { replica, why } => write!(f, "replica {replica} could not start: {why}"),
            Self::Refused { replica, why } => write!(f, "replica {replica} does not match the front: {why}"),
        }
    }
}

impl std::error::Error for FleetError {}

impl From<io::Error> for FleetError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
