//! [`Layout`]: memory layout of the region that the ranks of a group share.
//!
//! Synchronization words come first, one per cache line, then data:
//!
//! ```text
//! header | lost | head of each ring | per rank: doorbell, sleepers, chunks, tail of each ring
//! step ring | command ring | per rank: two chunk buffers
//! ```

/// Words per line: two 64-byte cache lines, since processors prefetch adjacent pairs (false
/// sharing).
pub(crate) const LINE_WORDS: usize = 32;
/// Words of a chunk header: step, index of the collective, kind, length.
pub(crate) const CHUNK_HEADER_WORDS: usize = 4;
/// Number of rings.
pub(crate) const RINGS: usize = 2;

/// Header, [`Layout::LOST`] and the heads.
const LINES_OF_GROUP: usize = 2 + RINGS;
/// Doorbell, sleepers, chunks and the tails.
const LINES_OF_RANK: usize = 3 + RINGS;

/// Sizes of the shared memory of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Number of ranks.
    pub(crate) ranks: usize,
    /// Words per ring; a power of two.
    pub(crate) ring_words: usize,
    /// Maximum words per chunk.
    pub(crate) chunk_words: usize,
}

impl Layout {
    pub(crate) fn of(ranks: usize) -> Self {
        Self { ranks, ring_words: 1 << 18, chunk_words: 1 << 16 }
    }

    /// Line of the lost rank + 1; 0 if none is lost.
    pub(crate) const LOST: usize = 1;

    /// Line of a ring's head: words that the writer has published.
    pub(crate) fn head(ring: usize) -> usize {
        2 + ring
    }

    fn rank(rank: usize) -> usize {
        LINES_OF_GROUP + rank * LINES_OF_RANK
    }

    /// Line of the futex that a rank sleeps on.
    pub(crate) fn doorbell(rank: usize) -> usize {
        Self::rank(rank)
    }

    /// Line of the number of a rank's sleeping threads.
    pub(crate) fn sleepers(rank: usize) -> usize {
        Self::rank(rank) + 1
    }

    /// Line of the number of chunks that a rank has published.
    pub(crate) fn chunks(rank: usize) -> usize {
        Self::rank(rank) + 2
    }

    /// Line of a rank's tail: words that it has read from a ring.
    pub(crate) fn tail(rank: usize, ring: usize) -> usize {
        Self::rank(rank) + 3 + ring
    }

    /// Number of lines, which hold the synchronization words.
    pub(crate) fn lines(&self) -> usize {
        Self::rank(self.ranks)
    }

    /// First word of a ring.
    pub(crate) fn ring(&self, ring: usize) -> usize {
        self.lines() * LINE_WORDS + ring * self.ring_words
    }

    /// First word of a rank's chunk buffer `parity % 2`: its header.
    pub(crate) fn chunk(&self, rank: usize, parity: u32) -> usize {
        let size = CHUNK_HEADER_WORDS.next_multiple_of(LINE_WORDS) + self.chunk_words;
        self.ring(RINGS) + (rank * 2 + parity as usize % 2) * size
    }

    /// First word of the data in that chunk buffer.
    pub(crate) fn chunk_data(&self, rank: usize, parity: u32) -> usize {
        self.chunk(rank, parity) + CHUNK_HEADER_WORDS.next_multiple_of(LINE_WORDS)
    }

    /// Total size in words.
    pub(crate) fn words(&self) -> usize {
        self.chunk(self.ranks, 0)
    }
}
