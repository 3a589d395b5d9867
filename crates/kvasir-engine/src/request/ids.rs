//! Ids of requests and sessions.

use serde::{Deserialize, Serialize};

/// Request id, unique within one core: `use_count << 32 | table index`. Never reissued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestId(pub u64);

impl RequestId {
    pub(crate) fn new(index: u32, use_count: u32) -> Self {
        Self(u64::from(use_count) << 32 | u64::from(index))
    }

    /// Index into the core's table of sequences.
    pub fn index(self) -> u32 {
        self.0 as u32
    }
}

/// A session: requests that continue one conversation. The caller must issue a unique id per
/// conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);
