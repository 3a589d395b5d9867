//! `SharedPrefix`: a frozen, read-only KV prefix that independent caches read in front of their own
//! (system prompt, shared context).
//!
//! With recurrent layers, it also has frozen states at some of its positions. A cache that reads it
//! starts its sequences from the last state at a block boundary. So a prefix for sessions of any
//! block size needs several states ([`SharedPrefix::state_positions`]).
//!
//! The rows lie in a pool of their own and may extend another prefix, the one *below*. Reference
//! counting by `Arc` decides when the backend may free the pool: `PrefixWatch::is_gone`. Nothing
//! here writes the rows again.

use crate::contract::cache::Cache;
use crate::contract::error::CacheError;
use crate::contract::frozen_rows::FrozenRows;
use crate::contract::ids::{PoolId, Position, Slot};
use crate::contract::section::{Layout, Segment};
use std::sync::{Arc, Weak};

/// A frozen prefix: its pool, the rows and states there, and the prefix that it extends.
#[derive(Debug)]
struct Frozen {
    pool: PoolId,
    /// Its own rows, and its states by the number of own rows that they cover.
    own: FrozenRows,
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
    pub(crate) fn new(pool: PoolId, own: FrozenRows, below: Option<Lease>) -> Self {
        Self { frozen: Lease(Arc::new(Frozen { pool, own, below })) }
    }

    /// Freezes the rows and states of a cache of kind `contiguous`, which the backend then keeps as
    /// `pool`. Fails like [`Cache::rows_to_freeze`].
    pub fn freeze(cache: Box<dyn Cache>, pool: PoolId) -> Result<Self, CacheError> {
        Ok(Self::new(pool, cache.rows_to_freeze()?, None))
    }

    /// The positions at which a prefix of `rows` rows needs a recurrent state: its end, and the
    /// last multiples of the default and of the largest block size (16 and 256). A session whose
    /// block size is a power of two then recomputes at most 255 positions of the prefix; at most 15
    /// if its block size is 16 or less.
    pub fn state_positions(rows: u32) -> [Position; 3] {
        [rows, rows / 16 * 16, rows / 256 * 256]
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
        self.0.below.as_ref().map_or(0, Self::rows) + self.0.own.rows
    }

    /// Appends the segments that read the first `rows` positions, lowest first.
    pub(crate) fn push_segments(&self, rows: u32, segments: &mut Vec<Segment>) {
        let first = self.0.below.as_ref().map_or(0, Self::rows);
        if let Some(below) = &self.0.below {
            below.push_segments(rows.min(first), segments);
        }
        let (pool, len) = (self.0.pool, self.0.own.rows.min(rows.saturating_sub(first)));
        if len > 0 {
            segments.push(Segment { pool, layout: Layout::Run { start: 0 }, len, first, sparse: None });
        }
    }

    /// The last recurrent state at a multiple of `block_size`: its position, pool and slot.
    pub(crate) fn last_state(&self, block_size: u32) -> Option<(Position, (PoolId, Slot))> {
        let Frozen { pool, own, below } = &*self.0;
        let first = below.as_ref().map_or(0, Self::rows);
        let states = own.states.iter().map(|&(covered, slot)| (first + covered, (*pool, slot)));
        let last = states.rev().find(|(position, _)| position.is_multiple_of(block_size));
        last.or_else(|| below.as_ref()?.last_state(block_size))
    }
}
