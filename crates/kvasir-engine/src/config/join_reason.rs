//! [`JoinReason`]: why sliding-window layers join the full group.

use kvasir_kv::CacheKind;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};

/// Why sliding-window layers have no pools of their own, so that they store K and V of all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JoinReason {
    /// A cache of one sequence has one pool.
    Cache(CacheKind),
    /// Steps are padded to static shapes, and rows of window groups are not.
    StaticShapes,
    /// A draft tree has several paths per sequence; a window group supports one.
    TreeDrafts,
    /// The frozen pool of a shared prefix holds all layers.
    SharedPrefix,
    /// Transferred blocks hold all layers.
    KvTransfer,
    /// The executor does not read window sections of plans.
    Backend,
}

impl Display for JoinReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(kind) => write!(f, "a {kind} cache has one pool"),
            Self::StaticShapes => write!(f, "steps are padded to static shapes"),
            Self::TreeDrafts => write!(f, "drafts form trees"),
            Self::SharedPrefix => write!(f, "a shared prefix holds all layers"),
            Self::KvTransfer => write!(f, "K/V transfers copy all layers"),
            Self::Backend => write!(f, "the backend has one pool"),
        }
    }
}
