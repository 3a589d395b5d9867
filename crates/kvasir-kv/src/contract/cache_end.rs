//! `CacheEnd`: why a prefix-cache hit ends before the last whole block of the prompt.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason of a short prefix-cache hit, one that ends before the last whole block of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheEnd {
    /// The K/V of more tokens is cached, but no checkpoint of the recurrent states at a later
    /// length was stored.
    NoCheckpoint,
    /// The K/V of more tokens is cached in other layer groups, but sliding-window layers have
    /// released the rows that later positions would read.
    WindowReleased,
    /// The next block, or a checkpoint at a greater length, was evicted.
    Evicted,
    /// The next block is cached under another salt only: of another API key or `cache_salt`, or
    /// with other rotary frequencies.
    OtherKey,
    /// The next block was not published since the cache was created, or its eviction is too old to
    /// be recorded.
    NeverComputed,
}

impl CacheEnd {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 5] =
        [Self::NoCheckpoint, Self::WindowReleased, Self::Evicted, Self::OtherKey, Self::NeverComputed];

    /// The reason in snake case, as in metrics and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoCheckpoint => "no_checkpoint",
            Self::WindowReleased => "window_released",
            Self::Evicted => "evicted",
            Self::OtherKey => "other_key",
            Self::NeverComputed => "never_computed",
        }
    }
}

impl fmt::Display for CacheEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.label().replace('_', " "))
    }
}
