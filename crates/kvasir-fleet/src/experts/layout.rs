//! [`ExchangeLayout`]: layout of the shared memory of an expert-parallel group.
//!
//! ```text
//! synchronization words of 2 N members
//! per replica: two join records
//! per replica: dispatch header | rows | expert ids of each row
//! outputs, by replica of the row, row, and index of the expert among those of the row
//! ```
//!
//! Each replica is two members of the [`Layout`] of ranks, because two of its threads wait on a
//! futex: member `r` is the thread that runs its steps, member `N + r` its watcher. The line of the
//! first member counts the barriers that the replica has reached. The line of the second counts the
//! steps that it has begun.

use crate::ranks::layout::{LINE_WORDS, Layout};

/// Words of a join record: tokens, prefillable, pending tokens (two words), decoding sequences (two
/// words).
pub(crate) const JOIN_WORDS: usize = 6;
/// Words of a dispatch header: step, index of the exchange in the step, rows, values per row,
/// experts per row.
pub(crate) const DISPATCH_WORDS: usize = 5;
/// Target size of the outputs for one replica's chunk, in words (16 MiB).
const OUTPUT_WORDS: usize = 1 << 22;
/// Maximum number of rows of a chunk.
const MAX_ROWS: usize = 512;

/// The sizes that determine all offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeLayout {
    /// Number of replicas.
    pub(crate) replicas: usize,
    /// Rows per chunk.
    pub(crate) chunk_rows: usize,
    /// Maximum values per row.
    pub(crate) width: usize,
    /// Maximum experts per row.
    pub(crate) top_k: usize,
}

impl ExchangeLayout {
    /// Layout for rows of up to `width` values with up to `top_k` experts each.
    pub(crate) fn new(replicas: usize, width: usize, top_k: usize) -> Self {
        let chunk_rows = (OUTPUT_WORDS / (width * top_k).max(1)).clamp(1, MAX_ROWS);
        Self { replicas, chunk_rows, width, top_k }
    }

    /// Layout of the synchronization words.
    pub(crate) fn members(&self) -> Layout {
        Layout { ranks: 2 * self.replicas, ring_words: 0, chunk_words: 0 }
    }

    /// Line of the number of barriers that a replica has reached.
    pub(crate) fn barriers(replica: usize) -> usize {
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
        let row = self.width + self.top_k;
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

    /// First word of the expert ids of a replica's dispatched rows.
    pub(crate) fn experts(&self, replica: usize) -> usize {
        self.rows(replica) + self.chunk_rows * self.width
    }

    /// First word of the output for a replica's row of its expert with index `choice`, which is
    /// below `top_k`.
    pub(crate) fn output(&self, replica: usize, row: usize, choice: usize) -> usize {
        let output = (replica * self.chunk_rows + row) * self.top_k + choice;
        self.dispatch(self.replicas) + output * self.width
    }

    /// Total size in words.
    pub(crate) fn words(&self) -> usize {
        self.output(self.replicas, 0, 0)
    }
}
