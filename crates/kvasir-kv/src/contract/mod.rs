//! The contract between caches and their callers: ids, the cache traits, plans and errors.
//!
//! Knows no cache. Every cache and every backend builds on it.

pub(crate) mod cache;
pub(crate) mod error;
pub(crate) mod ids;
pub(crate) mod lowering;
pub(crate) mod plan;
