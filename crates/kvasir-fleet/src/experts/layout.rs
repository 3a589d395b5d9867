//! [`ExchangeLayout`]: memory layout of the region that the replicas of a group share.
//!
//! ```text
//! synchronization words of 2 N members
//! per replica: two join records
//! per replica: dispatch header | rows | experts of each row
//! outputs, by replica of the row, row, and chosen expert
//! ```
//!
//! Each replica is two members of the [`Layout`] of ranks, because two of its threads sleep: member
//! `r` is the thread that runs its steps, member `N + r` its watcher. Their counters are the phases
//! of exchanges, and the steps that the replica has begun.

use crate::ranks::layout::{LINE_WORDS, Layout};

/// Words of a join record: tokens, prefillable, pending tokens (2), decoding sequences (2).
pub(crate) const JOIN_WORDS: usize = 6;
/// Words of a dispatch header: step, index of the exchange, rows, width, experts per row.
pub(crate) const DISPATCH_WORDS: usize = 5;
/// Target size of the outputs of one replica's rows, in words: 16 MiB.
const OUTPUT_WORDS: usize = 1 << 22;
/// Maximum number of rows that a replica dispatches at once.
const MAX_ROWS: usize = 512;

/// Sizes of the shared memory of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeLayout {
    /// Number of replicas.
    pub(crate) replicas: usize,
    /// Rows that a replica dispatches at once.
    pub(crate) chunk_rows: usize,
    /// Maximum values per row.
    pub(crate) width: usize,
    /// Maximum experts per row.
    pub(crate) chosen: usize,
}

impl ExchangeLayout {
    /// The layout for rows of up to `width` values with up to `chosen` experts each.
    pub(crate) fn of(replicas: usize, width: usize, chosen: usize) -> Self {
        let chunk_rows = (OUTPUT_WORDS / (width * chosen).max(1)).clamp(1, MAX_ROWS);
        Self { replicas, chunk_rows, width, chosen }
    }

    /// The synchronization words.
    pub(crate) fn members(&self) -> Layout {
        Layout { ranks: 2 * self.replicas, ring_words: 0, chunk_words: 0 }
    }

    /// Line of the number of phases that a replica has completed.
    pub(crate) fn phases(replica: usize) -> usize {
        Layout::chunks(replica)
    }

    /// Line of the number of steps that a replica has begun.
    pub(crate) fn begun(&self, replica: usize) -> usize {
        Layout::chunks(self.replicas + replica)
    }

    /// First word of the join record of a replica's step.
    pub(crate) fn join(&self, replica: usize, step: u32) -> usize {
        let first = self.members().lines() * LINE_WORDS;
        first + (replica * 2 + step as usize % 2) * LINE_WORDS
    }

    fn dispatch_words(&self) -> usize {
        let row = self.width + self.chosen;
        LINE_WORDS + (self.chunk_rows * row).next_multiple_of(LINE_WORDS)
    }

    /// First word of a replica's dispatch header.
    pub(crate) fn dispatch(&self, replica: usize) -> usize {
        self.join(self.replicas, 0) + replica * self.dispatch_words()
    }

    /// First word of a replica's dispatched rows.
    pub(crate) fn rows(&self, replica: usize) -> usize {
        self.dispatch(replica) + LINE_WORDS
    }

    /// First word of the experts of a replica's dispatched rows.
    pub(crate) fn experts(&self, replica: usize) -> usize {
        self.rows(replica) + self.chunk_rows * self.width
    }

    /// First word of the output of an expert: number `place` of those that a replica's row chose.
    pub(crate) fn output(&self, replica: usize, row: usize, place: usize) -> usize {
        let output = (replica * self.chunk_rows + row) * self.chosen + place;
        self.dispatch(self.replicas) + output * self.width
    }

    /// Total size in words.
    pub(crate) fn words(&self) -> usize {
        self.output(self.replicas, 0, 0)
    }
}
