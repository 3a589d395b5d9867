//! `PrefixMatch`: how many prompt tokens of a request matched cached K/V at its admission, and why
//! the match ended there.

use kvasir_kv::CacheEnd;
use serde::{Deserialize, Serialize};

/// The match of a prompt with cached K/V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixMatch {
    /// Leading prompt tokens that matched cached K/V. More than were served from the cache if a
    /// layer group lacked data for all of them, or if the policy used only part.
    pub matched: u32,
    /// Why the cache did not serve all whole blocks of the prompt. `None` if it did, or if nothing
    /// was looked up because prefix caching is off, or the request returns prompt
    /// log-probabilities.
    pub cache_end: Option<CacheEnd>,
    /// The reason that the client may see: `cache_end`, with `NeverComputed` in place of `OtherKey` if
    /// the block was cached by another API key.
    pub public_cache_end: Option<CacheEnd>,
}

impl PrefixMatch {
    /// The match of a request that was never admitted.
    pub const NONE: Self = Self { matched: 0, cache_end: None, public_cache_end: None };
}

/// The first admission of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAdmission {
    /// The caller's tag.
    pub tag: u64,
    /// Prompt tokens served from the KV cache.
    pub cached: u32,
    /// How many prompt tokens matched, and why the match ended there.
    pub prefix: PrefixMatch,
}
