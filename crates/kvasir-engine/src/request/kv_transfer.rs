//! `KvExport` and `KvImport`: whole K/V blocks of a request, sent by the engine that computes its
//! prompt to the engine that decodes. Rows are in their stored form.

use kvasir_kv::Token;
use serde::{Deserialize, Serialize};

/// Consecutive whole blocks of a request with [`Params::hand_off`](crate::Params::hand_off).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvExport {
    /// The request's tag.
    pub tag: u64,
    /// First token of the blocks.
    pub start: u32,
    /// Number of tokens; may be 0 in the last export of the request.
    pub tokens: u32,
    /// Rows of the tokens, concatenated.
    pub rows: Vec<u8>,
    /// Whether the prompt is computed, so that no export of the request follows.
    pub is_last: bool,
}

/// Consecutive whole blocks that another engine has computed, for the prefix cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvImport {
    /// Prefix-cache salt.
    pub salt: u64,
    /// All prompt tokens up to the end of the blocks.
    pub tokens: Vec<Token>,
    /// First token of the blocks.
    pub start: u32,
    /// Rows of the tokens from `start`, concatenated. An import without them is refused and
    /// counted.
    pub rows: Vec<u8>,
}

/// Outcomes of imports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportCounts {
    /// Number of imports that were handled.
    pub handled: u32,
    /// Number of tokens whose rows were stored, without those that were already cached.
    pub stored: u32,
    /// Number of tokens of refused imports.
    pub refused: u32,
}
