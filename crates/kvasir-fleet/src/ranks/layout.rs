//! Where the parts of the shared memory lie.
//!
//! Synchronization words come first, each on a cache line of its own, then data:
//!
//! ```text
//! header | lost | head of each ring | per rank: doorbell, sleepers, pieces, tails
//! ring of commands | ring of steps | per rank: two pieces
//! ```

/// Words of a cache line; adjacent pairs of 64 bytes, since processors prefetch them together.
pub(crate) const LINE: usize = 32;
/// Words in front of a piece: step, number of the collective, kind, length.
pub(crate) const PIECE_HEADER: usize = 4;
/// Number of rings.
pub(crate) const RINGS: usize = 2;

/// The first line is the header.
const LINES_OF_GROUP: usize = 2 + RINGS;
const LINES_OF_RANK: usize = 3 + RINGS;

/// Sizes of the shared memory of one group of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Number of ranks.
    pub(crate) ranks: usize,
    /// Words of a ring; a power of two.
    pub(crate) ring_words: usize,
    /// Most words of a collective that are exchanged at once.
    pub(crate) piece: usize,
}

impl Layout {
    pub(crate) fn of(ranks: usize) -> Self {
        Self { ranks, ring_words: 1 << 18, piece: 1 << 16 }
    }

    /// Line that says which rank is lost: its number + 1.
    pub(crate) const LOST: usize = 1;

    /// Line of the words that the writer of a ring has published.
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

    /// Line of the number of a rank's threads that sleep.
    pub(crate) fn sleepers(rank: usize) -> usize {
        Self::rank(rank) + 1
    }

    /// Line of the number of pieces that a rank has published.
    pub(crate) fn pieces(rank: usize) -> usize {
        Self::rank(rank) + 2
    }

    /// Line of the words that a rank has read of a ring.
    pub(crate) fn tail(rank: usize, ring: usize) -> usize {
        Self::rank(rank) + 3 + ring
    }

    /// Number of lines of synchronization words.
    pub(crate) fn lines(&self) -> usize {
        Self::rank(self.ranks)
    }

    /// First word of a ring.
    pub(crate) fn ring(&self, ring: usize) -> usize {
        self.lines() * LINE + ring * self.ring_words
    }

    /// First word of one of a rank's two pieces, its header included.
    pub(crate) fn piece(&self, rank: usize, parity: u32) -> usize {
        let size = PIECE_HEADER.next_multiple_of(LINE) + self.piece;
        self.ring(RINGS) + (rank * 2 + parity as usize % 2) * size
    }

    /// First word of the numbers of a piece.
    pub(crate) fn numbers(&self, rank: usize, parity: u32) -> usize {
        self.piece(rank, parity) + PIECE_HEADER.next_multiple_of(LINE)
    }

    /// Number of words.
    pub(crate) fn words(&self) -> usize {
        self.piece(self.ranks, 0)
    }
}
