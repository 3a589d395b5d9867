//! `CacheKind`: which cache, as `--cache` names it; `Capability`: what a cache can do beyond the
//! `Cache` trait.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The cache kinds, as `--cache` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// One sequence and a length counter: row `i` in slot `i`.
    Contiguous,
    /// A pool of single-token cells, each with a position and any number of owners.
    Cells,
    /// One sequence with draft trees behind it (speculative decoding).
    Tree,
    /// Paged attention; prefix caching by chained block hashes.
    Paged,
    /// Paged attention; prefix caching by a radix tree over token ids.
    Radix,
}

impl CacheKind {
    /// All kinds.
    pub const ALL: &[Self] = &[Self::Contiguous, Self::Cells, Self::Tree, Self::Paged, Self::Radix];

    /// The name on the command line (`--cache`).
    pub fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Cells => "cells",
            Self::Tree => "tree",
            Self::Paged => "paged",
            Self::Radix => "radix",
        }
    }

    /// Whether slots are allocated in blocks of a configurable size (paged attention).
    pub fn is_block_based(self) -> bool {
        match self {
            Self::Paged | Self::Radix => true,
            Self::Contiguous | Self::Cells | Self::Tree => false,
        }
    }

    /// Whether it holds one sequence only, which cannot be forked.
    pub fn holds_one_sequence(self) -> bool {
        match self {
            Self::Contiguous | Self::Tree => true,
            Self::Cells | Self::Paged | Self::Radix => false,
        }
    }
}

impl fmt::Display for CacheKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An optional capability of a cache beyond the `Cache` trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// Truncation: `Rewind`.
    Rewind,
    /// Fork, copy and range removal: `Sequences`.
    Sequences,
    /// Prefix caching: `Prefix`.
    Prefix,
    /// Draft trees for speculative decoding: `Tree`.
    Tree,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rewind => "rewind",
            Self::Sequences => "sequences",
            Self::Prefix => "prefix",
            Self::Tree => "tree",
        })
    }
}
