//! [`PoolCommand`]: what callers send to the thread of the tokenizer processes.

use crate::tokenizers::job::Work;
use crate::tokenizers::jobs::Reply;
use std::fmt;

/// From callers to the pool.
pub(super) enum PoolCommand {
    Submit {
        id: u64,
        work: Work,
        reply: Reply,
    },
    Cancel {
        id: u64,
    },
    /// Ends all processes, and then the pool.
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
