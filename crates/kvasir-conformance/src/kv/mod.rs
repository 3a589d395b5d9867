//! Replay runners for `kv.*`: single-sequence, tree and cell caches, frozen shared prefixes, and KV
//! geometry.
//!
//! The semantics are those of ExecuTorch's KV cache design document.
//!
//! Guarded by `tests/kv.rs` and `tests/mutations.rs`.

pub(crate) mod cells;
pub(crate) mod harness;
pub(crate) mod line;
pub(crate) mod metadata;
pub(crate) mod prefix;
pub(crate) mod subject;

use crate::outcome::Runner;

/// Case kinds of this family.
pub(crate) const KINDS: &[(&str, Runner)] = &[
    ("kv.cells", cells::run),
    ("kv.contiguous", line::run_contiguous),
    ("kv.metadata", metadata::run),
    ("kv.shared_prefix", prefix::run),
    ("kv.tree", line::run_tree),
];
