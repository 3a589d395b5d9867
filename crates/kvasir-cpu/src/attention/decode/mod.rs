//! The decode path of attention (GEMV): few query rows per KV head, SIMD kernels that read K and V
//! in place.
//!
//! Used up to `most` query rows per KV head: decode, small GQA groups and short draft verification.
//! Needs AVX2 and a V dimension of whole cache lines. With AMX only P V takes this path; S = Q K^T
//! stays on tiles. V is not packed into tiles: with so few rows of P a tile product costs nearly as
//! much as a full one, and packing V costs more than multiplying it. Without AMX the scores are
//! computed for a SIMD vector of positions at a time, instead of 16 query rows.
//!
//! - [`numbers`]: operands widened to f32, in the summation order of AMX. Per 32 numbers one FMA
//!   chain runs over the even and one over the odd; the two are added, then added to the sum.
//! - [`dots`]: bf16 pair dot products, in the order of [`pairs`](super::pairs).
//! - `later`: prefetch of the next head's rows. `shares`: online softmax in this layout.

pub(crate) mod dots;
pub(crate) mod later;
pub(crate) mod numbers;
pub(crate) mod shares;

use crate::attention::decode::later::Later;

use crate::attention::products::{FEW, Keys};
use crate::attention::scored::Scored;
use crate::attention::scratch::Scratch;
use crate::attention::softmax;
use crate::attention::softmax::{Packed, Scores};
use crate::attention::stretch::Work;
use crate::attention::views::{CHUNK, Chunk, Run};
use crate::attention::{Attend, Piece, Shape, in_pairs};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::Heads;

/// Runs `$body` with `$v` as the [`numbers`] kernels of the level's SIMD width.
macro_rules! in_vectors {
    ($level:expr, $v:ident => $body:expr) => {
        match $level {
            Level::Avx2 | Level::AvxVnni => {
                use crate::attention::decode::numbers::v256 as $v;
                $body
            }
            _ => {
                use crate::attention::decode::numbers::v512 as $v;
                $body
            }
        }
    };
}

/// Numbers of bf16 in a cache line, and positions per step of P V.
pub(crate) const LINE: usize = 32;

/// Query rows per KV head up to which the decode path pays without AMX, whose tiles have 16 rows
/// whatever is used.
const MOST: usize = 8;

/// Query rows per KV head up to which the decode path pays.
pub(crate) fn most(level: Level) -> usize {
    if level >= Level::Amx { FEW } else { MOST }
}

/// Scores of 16 query rows, a row per query row.
pub(crate) type Lying = [[f32; CHUNK]; LANES];

impl Attend<'_> {
    /// O = O * exp(m_old - m_new) + P V for one chunk, head by head, with V rows read in place.
    pub(super) fn take_rows(&self, level: Level, piece: &Piece<'_>, work: &Work<'_>, s: &mut Scratch) {
        let width = self.facts.value_dim;
        let seen = &work.chunks[0];
        let mut rows = [std::ptr::null::<u16>(); CHUNK];
        // Byte offset from these addresses to the current head's rows.
        let mut by = 0;
        let first = piece.heads.start + work.heads.start;
        let heads = self.heads_of_values(seen.chunk);
        let [_, mut later] = s.later;
        let asks = later.is_something();
        for (i, head) in work.heads.clone().enumerate() {
            match heads {
                Some(heads) if i > 0 && seen.chunk.len as usize == CHUNK => {
                    by += heads.to_next(piece.heads.start + head - 1);
                }
                _ => self.value_rows(level, piece.heads.start + head, seen.chunk, &mut rows, s),
            }
            let last = head + 1 == work.heads.end;
            later = match seen.next {
                Some(next) if last && asks => self.later_keys(next, first),
                // Without a next chunk the same rows are prefetched again, which costs nothing.
                None if last => later,
                _ => later.next_head(),
            };
            let block = &s.blocks[work.blocks.start];
            let (from, lanes) = (i * block.per_head, block.per_head);
            let at = block.lanes[from] as usize * width;
            let sums = &mut s.sums[at..][..lanes * width];
            softmax::fade(level, sums, width, &s.fades[work.blocks.start][from..from + lanes]);
            // Positions past the last entry have weight 0 and are skipped.
            let rows = (&rows[..seen.len().next_multiple_of(2)], by);
            // SAFETY: the level was detected on this machine; the rows are the pool's or staged.
            unsafe {
                if in_pairs(level) {
                    dots::add((&s.shares[work.blocks.start], from), rows, &later, width, sums);
                } else {
                    add(level, &s.open_shares[0], (from, lanes), rows, &later, width, sums);
                }
            }
        }
    }

    /// Offsets between the heads' V rows, if the addresses of a chunk's other heads follow from the
    /// first head's alone.
    fn heads_of_values(&self, chunk: &Chunk) -> Option<Heads> {
        let runs = self.views.runs(chunk);
        let rows = |run: &Run| self.pool(run.pool).read_as_values();
        let lie = runs.iter().all(|run| rows(run).kind() == KvType::Bf16);
        runs.first().filter(|_| lie).map(|run| rows(run).heads())
    }
}

impl Scratch {
    /// S = Q K^T of a decode block and a chunk, at levels without AMX.
    ///
    /// # Safety
    /// The machine must have the level's instructions; the block's queries and the keys must have
    /// been made.
    pub(super) unsafe fn score_few(&mut self, level: Level, shape: Shape, now: Scored) {
        let block = &self.blocks[now.block];
        let lanes = block.per_head;
        let Some(lying) = self.lying_scores.first_chunk_mut::<LANES>() else { return };
        let [mut next, values] = self.later;
        let last = self.keys.len() - 1;
        for (i, keys) in self.keys.iter().enumerate() {
            next = if i < last { next.next_head() } else { values };
            let keys = (keys, now.seen);
            // SAFETY: as the caller vouches.
            unsafe {
                if in_pairs(level) {
                    let queries = &self.queries[block.queries..][..shape.steps()];
                    dots::scores(keys, &next, queries, (i * lanes, lanes), lying);
                } else {
                    let queries = &self.open_queries[block.queries..][..shape.steps()];
                    scores(level, keys, &next, queries, (i * lanes, lanes), lying);
                }
            }
        }
        if !in_pairs(level) {
            // SAFETY: as above.
            unsafe { in_vectors!(level, v => v::stand(lying, &mut self.scores[now.place])) };
        }
    }
}

/// S = Q K^T of one KV head: its first `keys.1` positions, and the `lanes` query rows from `from`
/// on. `queries` has the rows' numbers per step of 32.
///
/// # Safety
/// The machine must have the level's instructions, and `keys` must be 64 rows of as many steps as
/// `queries`.
unsafe fn scores(
    level: Level,
    keys: (&Keys, usize),
    later: &Later,
    queries: &[OperandB],
    (from, lanes): (usize, usize),
    out: &mut Lying,
) {
    assert!(from + lanes <= LANES);
    for first in (from..from + lanes).step_by(FEW) {
        // SAFETY: as the caller vouches.
        unsafe {
            in_vectors!(level, v => match from + lanes - first {
                1 => v::positions::<1>(keys, later, queries, first, out),
                2 => v::positions::<2>(keys, later, queries, first, out),
                3 => v::positions::<3>(keys, later, queries, first, out),
                _ => v::positions::<FEW>(keys, later, queries, first, out),
            });
        }
    }
}

/// Widens attention weights to f32.
///
/// # Safety
/// The level must be at least [`Level::Avx2`], and the machine must have its instructions.
pub(crate) unsafe fn open(level: Level, packed: &Packed, shares: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(level, v => v::open(packed, shares)) };
}

/// O += P V for the `lanes` query rows from `from` on, over an even number of positions with
/// `width` numbers each. `sums` is in the column order of [`crate::attention::coming`]. Prefetches `later`.
///
/// # Safety
/// The machine must have the level's instructions, and each of `rows` must point at `width`
/// numbers, a multiple of [`LINE`].
unsafe fn add(
    level: Level,
    shares: &Scores,
    (from, lanes): (usize, usize),
    rows: (&[*const u16], usize),
    later: &Later,
    width: usize,
    sums: &mut [f32],
) {
    assert!(from + lanes <= LANES && sums.len() == lanes * width && width.is_multiple_of(LINE));
    let shares = shares.as_ptr().cast::<f32>().wrapping_add(from);
    for (n, sums) in sums.chunks_mut(FEW * width).enumerate() {
        let shares = shares.wrapping_add(n * FEW);
        // Register blocking: as much of a row at once as there are registers for.
        macro_rules! steps {
            ($vectors:ident, $lanes:expr, $vectors_of_row:expr) => {
                numbers::$vectors::steps::<{ $lanes }, { $vectors_of_row }>(shares, rows, later, width, sums)
            };
        }
        // SAFETY: as the caller vouches.
        unsafe {
            match (level, sums.len() / width, width / LINE) {
                (Level::Avx2 | Level::AvxVnni, 1, lines) if lines.is_multiple_of(2) => steps!(v256, 1, 4),
                (Level::Avx2 | Level::AvxVnni, 1, _) => steps!(v256, 1, 2),
                (Level::Avx2 | Level::AvxVnni, 2, _) => steps!(v256, 2, 2),
                (Level::Avx2 | Level::AvxVnni, 3, _) => steps!(v256, 3, 1),
                (Level::Avx2 | Level::AvxVnni, ..) => steps!(v256, FEW, 1),
                (_, 1, lines) if lines.is_multiple_of(4) => steps!(v512, 1, 4),
                (_, 1, lines) if lines.is_multiple_of(2) => steps!(v512, 1, 2),
                (_, 2, lines) if lines.is_multiple_of(2) => steps!(v512, 2, 2),
                (_, 1, _) => steps!(v512, 1, 1),
                (_, 2, _) => steps!(v512, 2, 1),
                (_, 3, _) => steps!(v512, 3, 1),
                _ => steps!(v512, FEW, 1),
            }
        }
    }
}
