//! `SharedPrefix`: a frozen, read-only KV prefix that independent caches read in front of their own
//! (system prompt, shared context).
//!
//! The rows lie in a pool of their own and may stand on another prefix. Reference counting by `Arc`
//! decides when the backend may free the pool: `PrefixWatch::is_gone`. Nothing here writes the rows
//! again.

use crate::contract::ids::PoolId;
use crate::contract::section::{Layout, Segment};
use std::sync::{Arc, Weak};

/// A frozen prefix: its pool, its rows there, and the prefix below it.
#[derive(Debug)]
struct Frozen {
    pool: PoolId,
    rows: u32,
    below: Option<Lease>,
}

/// A frozen, read-only prefix that independent caches share. Holding the handle permits new forks.
/// The rows may be freed when the handle and the last fork are gone; a [`PrefixWatch`] tells the
/// backend.
#[derive(Debug)]
pub struct SharedPrefix {
    frozen: Lease,
}

impl SharedPrefix {
    pub(crate) fn new(pool: PoolId, rows: u32, below: Option<Lease>) -> Self {
        Self { frozen: Lease(Arc::new(Frozen { pool, rows, below })) }
    }

    /// Number of positions, including the prefix below.
    pub fn rows(&self) -> u32 {
        self.frozen.rows()
    }

    /// A strong reference to the rows, as a fork holds it.
    pub(crate) fn lease(&self) -> Lease {
        self.frozen.clone()
    }

    /// A weak handle that tells whether the rows are still read.
    pub fn watch(&self) -> PrefixWatch {
        PrefixWatch { pool: self.frozen.0.pool, frozen: Arc::downgrade(&self.frozen.0) }
    }
}

/// Weak handle to a prefix: does not keep it alive.
#[derive(Clone, Debug)]
pub struct PrefixWatch {
    pool: PoolId,
    frozen: Weak<Frozen>,
}

impl PrefixWatch {
    /// The pool that holds the rows.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Whether handle and forks are gone, so that the pool may be freed.
    pub fn is_gone(&self) -> bool {
        self.frozen.strong_count() == 0
    }
}

/// A strong reference to a frozen prefix, as a fork holds it.
#[derive(Clone, Debug)]
pub(crate) struct Lease(Arc<Frozen>);

impl Lease {
    /// Number of positions, including the prefix below.
    pub(crate) fn rows(&self) -> u32 {
        self.0.below.as_ref().map_or(0, Self::rows) + self.0.rows
    }

    /// Appends the segments that read the first `rows` positions, lowest first.
    pub(crate) fn push_segments(&self, rows: u32, segments: &mut Vec<Segment>) {
        let first = self.0.below.as_ref().map_or(0, Self::rows);
        if let Some(below) = &self.0.below {
            below.push_segments(rows.min(first), segments);
        }
        let (pool, len) = (self.0.pool, self.0.rows.min(rows.saturating_sub(first)));
        if len > 0 {
            segments.push(Segment { pool, layout: Layout::Run { start: 0 }, len, first, sparse: None });
        }
    }
}
