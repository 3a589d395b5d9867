//! The `kv.*` kinds: the caches of the ExecuTorch document, frozen prefixes, and the reader of KV facts.

mod bench;
mod cells;
mod line;
mod metadata;
mod prefix;
mod subject;

use super::Runner;

/// The kinds and their runners.
pub(super) const KINDS: &[(&str, Runner)] = &[
    ("kv.cells", cells::run),
    ("kv.contiguous", line::run_contiguous),
    ("kv.metadata", metadata::run),
    ("kv.shared_prefix", prefix::run),
    ("kv.tree", line::run_tree),
];
