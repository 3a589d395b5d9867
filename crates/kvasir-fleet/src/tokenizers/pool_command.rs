//! [`PoolCommand`]: the messages of callers to the pool's thread.

use crate::tokenizers::job::Work;
use crate::tokenizers::jobs::Reply;
use std::fmt;

/// A message to the pool's thread.
pub(super) enum PoolCommand {
    Submit {
        id: u64,
        work: Work,
        reply: Reply,
    },
    Cancel {
        id: u64,
    },
    /// Ends all processes and the pool's thread.
    Exit,
}

impl fmt::Debug for PoolCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submit { id, .. } => write!(f, "Submit({id})"),
            Self::Cancel { id } => write!(f, "Cancel({id})"),
            Self::Exit => write!(f, "Exit"),
        }
    }
}
