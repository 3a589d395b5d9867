//! Replay runners for the block caches: `paged` and `radix`, their prefix indices and block hashes.
//!
//! Guarded by `tests/replay_blocks.rs` and `tests/mutations.rs`.

pub(crate) mod index;
pub(crate) mod manager;
pub(crate) mod pages;
pub(crate) mod radix_tree;

use crate::outcome::Runner;

/// Case kinds of this family.
pub(crate) const KINDS: &[(&str, Runner)] = &[
    ("atom.block_manager", manager::run),
    ("atom.block_pool", index::run_pool),
    ("atom.hash", index::run_hash),
    ("minisgl.cache_manager", pages::run_cache_manager),
    ("minisgl.naive", pages::run_naive),
    ("minisgl.page_allocator", pages::run_page_allocator),
    ("minisgl.radix", radix_tree::run),
    ("nano.hash", index::run_nano_hash),
];
