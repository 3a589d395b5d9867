//! Query blocks: groups the query rows (query heads of tokens) of a work item by 16, and packs
//! their queries for the kernels.
//!
//! A block is the M (or N) dimension of the attention GEMMs: 16 query rows of one KV head, as GQA
//! and the tokens of a prefill chunk supply them. In decode, where each KV head has few rows,
//! several heads share a block.

#[cfg(target_arch = "x86_64")]
use crate::attention::decode;
use crate::attention::scratch::Scratch;
use crate::attention::softmax::Sight;
use crate::attention::stretch::TAKEN;
use crate::attention::views::{CHUNK, Chunk};
use crate::attention::{Attend, Piece, Shape, in_pairs, widens};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Level;
use crate::isa::float16::narrow;
use crate::isa::tile::{LANES, STEP, Tile, transpose};
use crate::prefetch::ranges::prefetch;
use std::ops::Range;

/// Up to 16 query rows that are computed together: some of one KV head, or all of several KV heads.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// KV heads, relative to the work item's first.
    pub(super) heads: Range<usize>,
    /// Query rows per KV head.
    pub(super) per_head: usize,
    pub(super) lanes: [u32; LANES],
    /// Whether the used row indices are consecutive.
    in_line: bool,
    /// Index of its first query tile, of one per [`Shape::steps`].
    pub(super) queries: usize,
    pub(super) sight: Sight,
    /// Minimum and maximum of `sight`: the number of visible entries, and the first visible
    /// position, over its rows.
    visible: (i32, i32),
    from: (i32, i32),
}

impl Block {
    pub(super) fn used(&self) -> usize {
        self.heads.len() * self.per_head
    }

    /// Loads a number per query row, such as the running maxima.
    pub(super) fn gather(&self, from: &[f32]) -> [f32; LANES] {
        let at = self.lanes[0] as usize;
        match from.get(at..at + LANES).and_then(<[f32]>::first_chunk) {
            Some(all) if self.in_line => *all,
            _ => self.lanes.map(|lane| from[lane as usize]),
        }
    }

    /// Stores a number per query row; the inverse of [`gather`](Self::gather).
    pub(super) fn scatter(&self, numbers: &[f32; LANES], to: &mut [f32]) {
        let (at, used) = (self.lanes[0] as usize, self.used());
        if self.in_line {
            return to[at..at + used].copy_from_slice(&numbers[..used]);
        }
        self.lanes.iter().zip(numbers).take(used).for_each(|(lane, number)| to[*lane as usize] = *number);
    }

    /// Whether some row of the block sees some entry of the chunk, whose last position is `last`.
    pub(super) fn sees(&self, chunk: &Chunk, last: i32) -> bool {
        self.visible.1 > chunk.first as i32 && self.from.0 <= last
    }

    /// Whether every row sees the whole chunk, which begins at position `first`: then no mask is
    /// applied.
    pub(super) fn sees_all(&self, chunk: &Chunk, first: i32) -> bool {
        chunk.len as usize == CHUNK
            && self.visible.0 >= (chunk.first + chunk.len) as i32
            && self.from.1 <= first
    }
}

impl Attend<'_> {
    /// Whether the decode kernels (`few`) take this many query rows of a KV head: V is then
    /// multiplied in place, as a GEMV.
    pub(super) fn is_few(&self, level: Level, lanes: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return level >= Level::Avx2
            && lanes <= decode::most(level)
            && self.facts.value_dim.is_multiple_of(decode::LINE);
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (level, lanes);
            false
        }
    }

    /// Builds the blocks of these tokens' query rows, ordered by KV head, and packs their queries.
    pub(super) fn make_blocks(&self, level: Level, piece: &Piece<'_>, tokens: Range<usize>, s: &mut Scratch) {
        let (group, steps) = (self.per_head(), Shape::of(self.facts).steps());
        let per_head = tokens.len() * group;
        // In decode several KV heads share a block; each one's rows get columns of their own.
        let few = self.is_few(level, per_head);
        let as_rows = few && in_pairs(level);
        let pack = if level >= Level::Amx || few { (LANES / per_head.max(1)).max(1) } else { 1 };
        s.blocks.clear();
        s.queries.clear();
        s.open_queries.clear();
        let mut head = 0;
        while head < piece.heads.len() {
            let heads = head..piece.heads.len().min(head + pack);
            let mut from = 0;
            while from < per_head {
                let n = (per_head - from).min(LANES);
                let queries = s.queries.len();
                let used = heads.len() * n;
                // Unused rows repeat the last one, so that they never force a mask.
                let place = |lane: usize| {
                    let lane = lane.min(used - 1);
                    (
                        heads.start + lane / n,
                        tokens.start + (from + lane % n) / group,
                        (from + lane % n) % group,
                    )
                };
                let lane = |lane: usize| {
                    let (head, token, g) = place(lane);
                    ((head * s.tokens.len() + token) * group + g) as u32
                };
                let sees = |lane: usize| s.tokens[place(lane).1];
                let sight = Sight {
                    visible: std::array::from_fn(|lane| sees(lane).1),
                    from: std::array::from_fn(|lane| self.window_from(sees(lane).0)),
                };
                let bounds = |all: &[i32; LANES]| {
                    all.iter().fold((i32::MAX, i32::MIN), |(a, b), &v| (a.min(v), b.max(v)))
                };
                let lanes = std::array::from_fn(lane);
                let block = Block {
                    heads: heads.clone(),
                    per_head: n,
                    lanes,
                    in_line: lanes[..used].is_sorted_by(|a, b| a + 1 == *b),
                    queries,
                    sight,
                    visible: bounds(&sight.visible),
                    from: bounds(&sight.from),
                };
                let query = |column: usize| {
                    let (head, token, g) = place(column);
                    let q_head = (piece.heads.start + head) * group + g;
                    let at = s.tokens[token].0 * self.q_stride + q_head * self.facts.key_dim;
                    &self.q[at..at + self.facts.key_dim]
                };
                s.queries.grow(queries + steps);
                if as_rows {
                    lay_queries(level, &mut s.queries[queries..], used, query);
                } else {
                    lay_queries(level, &mut s.lying, used, query);
                    for (rows, tile) in s.lying.iter().zip(&mut s.queries[queries..]) {
                        transpose(level, rows, tile);
                    }
                }
                s.blocks.push(block);
                from += n;
            }
            head = heads.end;
        }
        if few && widens(level) {
            // Widened to f32 for the decode kernels.
            s.open_queries.resize(s.queries.len(), OperandB::NONE);
            for (tile, open) in s.queries.iter().zip(&mut s.open_queries) {
                // SAFETY: a whole tile is readable.
                unsafe { open.load(level, tile.as_ptr().cast()) };
            }
        }
        s.shares.grow(TAKEN * s.blocks.len() + 1);
        s.fades.resize(TAKEN * s.blocks.len(), [0.0; LANES]);
    }
}

/// Prefetch distance in query rows: they lie far apart, beyond the hardware prefetcher.
const AHEAD: usize = 4;

/// Rounds the queries of `used` rows to bf16, a tile per 32 numbers of the head dimension and a
/// tile row per query row; unused rows are zeroed.
fn lay_queries<'q>(level: Level, lying: &mut [Tile], used: usize, query: impl Fn(usize) -> &'q [f32]) {
    for lane in 0..LANES {
        if lane >= used {
            lying.iter_mut().for_each(|tile| tile[lane] = [0; LANES]);
            continue;
        }
        prefetch(query((lane + AHEAD).min(used - 1)));
        let (whole, rest) = query(lane).as_chunks::<STEP>();
        let mut last = [0.0; STEP];
        last[..rest.len()].copy_from_slice(rest);
        for (part, tile) in whole.iter().chain([&last]).zip(&mut *lying) {
            // SAFETY: a tile row is 64 bytes, and a pair of bf16 fills a word.
            narrow(level, part, unsafe { &mut *tile[lane].as_mut_ptr().cast::<[u16; STEP]>() });
        }
    }
}
