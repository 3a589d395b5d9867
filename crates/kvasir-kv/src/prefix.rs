//! `SharedPrefix`: a frozen, read-only KV prefix that independent caches read in front of their own
//! (system prompt, shared context).
//!
//! The rows lie in a pool of their own and may stand on another prefix. Reference counting by `Arc`
//! decides when the backend may free the pool: `PrefixWatch::is_gone`. Nothing here writes the rows
//! again.

use crate::{Cache, CacheError, Contiguous, Layout, PoolId, Prefixed, Segment};
use std::sync::{Arc, Weak};

/// What is shared: which pool holds the rows, how many, and the prefix that they stand on.
#[derive(Debug)]
struct Frozen {
    pool: PoolId,
    rows: u32,
    below: Option<Lease>,
}

/// A frozen prefix that independent caches share: its rows are never written again.
///
/// The handle is the right to fork. When it is dropped there are no new forks; the rows go with the last fork, which a
/// [`PrefixWatch`] tells the backend that holds them.
#[derive(Debug)]
pub struct SharedPrefix {
    frozen: Lease,
}

impl SharedPrefix {
    pub(crate) fn new(pool: PoolId, rows: u32, below: Option<Lease>) -> Self {
        Self { frozen: Lease(Arc::new(Frozen { pool, rows, below })) }
    }

    /// Number of positions, those of the prefix below included.
    pub fn rows(&self) -> u32 {
        self.frozen.rows()
    }

    /// A contiguous cache on this prefix, with `capacity` slots of its own.
    pub fn fork(&self, capacity: u32) -> Result<Prefixed<Contiguous>, CacheError> {
        self.under(Box::new(Contiguous::new(capacity)))
    }

    /// Puts this prefix in front of every sequence of `cache`, which must be new and keep every position: one with a
    /// window of its own or with rings does not. What is shared is whole blocks of the cache's size.
    pub fn under<C: Cache + ?Sized>(&self, cache: Box<C>) -> Result<Prefixed<C>, CacheError> {
        Prefixed::new(self.frozen.clone(), cache)
    }

    /// Tells later whether somebody still reads the rows.
    pub fn watch(&self) -> PrefixWatch {
        PrefixWatch { pool: self.frozen.0.pool, frozen: Arc::downgrade(&self.frozen.0) }
    }
}

/// Looks at a prefix without keeping it.
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

    /// Whether handle and forks are gone, so that the pool's bytes may go.
    pub fn is_gone(&self) -> bool {
        self.frozen.strong_count() == 0
    }
}

/// A share in a frozen prefix: what a fork holds.
#[derive(Clone, Debug)]
pub(crate) struct Lease(Arc<Frozen>);

impl Lease {
    /// Number of positions, those of the prefix below included.
    pub(crate) fn rows(&self) -> u32 {
        self.0.below.as_ref().map_or(0, Self::rows) + self.0.rows
    }

    /// Appends the segments of a read of the first `rows` positions, lowest first.
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
