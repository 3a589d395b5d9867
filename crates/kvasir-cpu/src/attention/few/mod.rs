//! A few lanes of a head, in vectors that take rows as they lie.
//!
//! Values never become tiles: a tile of so few rows of shares costs the unit nearly as much as a whole one, and putting values into tiles costs more
//! than multiplying them. Where there is no tile unit, scores are made for as many positions at a time as a vector has numbers, instead of 16 lanes.
//!
//! [`numbers`] widens what it multiplies, in the tile unit's order of summation: per 32 numbers one chain of fused multiply-adds over the even ones and one
//! over the odd, the two added, that added to the sum. [`dots`] multiplies pairs, in the order of [`pairs`](super::pairs).

mod dots;
mod later;
mod numbers;
pub(super) mod shares;

pub(super) use later::Later;

use super::products::{FEW, Keys};
use super::scored::Scored;
use super::scratch::Scratch;
use super::softmax::{self, Packed, Scores};
use super::stretch::Work;
use super::view::{CHUNK, Chunk, Run};
use super::{Attend, Piece, Shape, in_pairs};
use crate::Level;
use crate::chains::Columns;
use crate::pool::{Heads, KvType};
use crate::tile::LANES;

/// Runs `$body` with `$v` as the [`numbers`] of the vectors that the level has.
macro_rules! in_vectors {
    ($level:expr, $v:ident => $body:expr) => {
        match $level {
            Level::Avx2 | Level::AvxVnni => {
                use numbers::v256 as $v;
                $body
            }
            _ => {
                use numbers::v512 as $v;
                $body
            }
        }
    };
}

/// Numbers of a row in a line of memory, and positions of a step.
pub(super) const LINE: usize = 32;

/// Lanes of a head up to which this pays where there is no tile unit, which would work on all 16 of a tile.
const MOST: usize = 8;

/// Lanes of a head up to which this pays.
pub(super) fn most(level: Level) -> usize {
    if level >= Level::Amx { FEW } else { MOST }
}

/// Scores of 16 lanes, a row per lane.
pub(super) type Lying = [[f32; CHUNK]; LANES];

impl Attend<'_> {
    /// Adds a chunk's values, head by head, to the sums of a block whose heads have few lanes each.
    pub(super) fn take_rows(&self, level: Level, piece: &Piece<'_>, work: &Work<'_>, s: &mut Scratch) {
        let width = self.facts.value_dim;
        let seen = &work.chunks[0];
        let mut rows = [std::ptr::null::<u16>(); CHUNK];
        // How far the head's rows lie behind these.
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
                // Where nothing comes it is the same once more.
                None if last => later,
                _ => later.next_head(),
            };
            let block = &s.blocks[work.blocks.start];
            let (from, lanes) = (i * block.per_head, block.per_head);
            let at = block.lanes[from] as usize * width;
            let sums = &mut s.sums[at..][..lanes * width];
            softmax::fade(level, sums, width, &s.fades[work.blocks.start][from..from + lanes]);
            // Nobody sees what is behind, and its shares are zeros.
            let rows = (&rows[..seen.len().next_multiple_of(2)], by);
            // SAFETY: the level has the instructions; the rows are the pool's or staged.
            unsafe {
                if in_pairs(level) {
                    dots::add((&s.shares[work.blocks.start], from), rows, &later, width, sums);
                } else {
                    add(level, &s.open_shares[0], (from, lanes), rows, &later, width, sums);
                }
            }
        }
    }

    /// How far heads' values lie apart, if that is all it takes to find those of a chunk.
    fn heads_of_values(&self, chunk: &Chunk) -> Option<Heads> {
        let runs = self.views.runs(chunk);
        let rows = |run: &Run| self.pool(run.pool).read_as_values();
        let lie = runs.iter().all(|run| rows(run).kind() == KvType::Bf16);
        runs.first().filter(|_| lie).map(|run| rows(run).heads())
    }
}

impl Scratch {
    /// Products of a chunk's keys with the queries of a block whose heads have few lanes, where there is no tile unit.
    ///
    /// # Safety
    /// The machine must have the instructions, the block's queries and the keys must be there.
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

/// Products of a head's keys, of which as many positions are seen, with the queries of the `lanes` lanes from `from` on. `queries` has a step's numbers of all lanes each.
///
/// # Safety
/// The machine must have the instructions, and `keys` be 64 rows of as many steps.
unsafe fn scores(
    level: Level,
    keys: (&Keys, usize),
    later: &Later,
    queries: &[Columns],
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

/// Shares as numbers.
///
/// # Safety
/// The level must be at least [`Level::Avx2`], and the machine have its instructions.
pub(super) unsafe fn open(level: Level, packed: &Packed, shares: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(level, v => v::open(packed, shares)) };
}

/// Adds the values of a chunk's positions, which come by twos, `width` numbers each, to the `sums` of the `lanes` lanes from `from` on, in the order
/// of [`super::coming`]. What is read `later` is asked for.
///
/// # Safety
/// The machine must have the instructions, and each of `rows` point at `width` numbers, which are whole lines.
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
        // As much of a row at once as there are registers for.
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
