//! `PrefixMatch`: how much of a request's prompt matched cached K/V at its admission, and why not
//! more.

use kvasir_kv::ShortHit;
use serde::{Deserialize, Serialize};

/// The match of a prompt with cached K/V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixMatch {
    /// Leading prompt tokens that matched cached K/V. More than were served from the cache if a
    /// layer group lacked data for all of them, or if the policy used only part.
    pub matched: u32,
    /// Why the cache did not serve all whole blocks of the prompt. `None` if it did, or if nothing
    /// was looked up: prefix caching is off, or the request returns prompt log-probabilities.
    pub short: Option<ShortHit>,
    /// `short` for the eyes of the client: `NeverComputed` in place of an `OtherKey` of another API
    /// key.
    pub public_short: Option<ShortHit>,
}

impl PrefixMatch {
    /// No match, of a request that was not admitted.
    pub const NONE: Self = Self { matched: 0, short: None, public_short: None };
}

/// The first admission of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAdmission {
    /// The caller's tag.
    pub tag: u64,
    /// Prompt tokens served from the KV cache.
    pub cached: u32,
    /// How much of the prompt matched, and why not more.
    pub prefix: PrefixMatch,
}
