//! The contract between caches and their callers: ids, the cache traits, plans with their masks,
//! and errors.
//!
//! Knows no cache and imports nothing else of the crate. Every cache and every backend builds on
//! it.

pub(crate) mod cache;
pub(crate) mod cache_end;
pub(crate) mod capabilities;
pub(crate) mod error;
pub(crate) mod frozen_rows;
pub(crate) mod group;
pub(crate) mod ids;
pub(crate) mod kind;
pub(crate) mod kv_event;
pub(crate) mod lowering;
pub(crate) mod mask;
pub(crate) mod plan;
pub(crate) mod plan_table;
pub(crate) mod rings;
pub(crate) mod section;
pub(crate) mod span;
pub(crate) mod state_section;
pub(crate) mod usage;
