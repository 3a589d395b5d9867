//! A few lanes of a head, in 512-bit vectors that take rows as they lie.
//!
//! Values never become tiles: a tile of so few rows of shares costs the unit nearly as much as a whole one, and putting values into tiles costs more
//! than multiplying them. Where there is no tile unit, scores are made for 16 positions at a time instead of 16 lanes.
//!
//! The order of summation is the tile unit's: per 32 numbers one chain of fused multiply-adds over the even ones and one over the odd, the two
//! added, that added to the sum. [`numbers`] widens what it multiplies, [`dots`] multiplies pairs.

mod dots;
mod later;
mod numbers;

pub(super) use later::Later;

use super::products::{FEW, Keys, transposed};
use super::scratch::{Scratch, Tile};
use super::softmax::{self, LANES, Packed, Scores};
use super::stretch::{Scored, Work};
use super::view::{CHUNK, Chunk, Run};
use super::{Attend, Piece, Shape};
use crate::Level;
use crate::chains::Columns;
use crate::pool::{KvType, TOGETHER};
use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

/// Numbers of a row in a line of memory, and positions of a step.
pub(super) const LINE: usize = 32;

/// Scores of 16 lanes that are not yet a row per position.
type Lying = [[f32; CHUNK]; LANES];

impl Attend<'_> {
    /// Adds a chunk's values, head by head, to the sums of a block whose heads have few lanes each.
    pub(super) fn take_rows(&self, level: Level, piece: &Piece<'_>, work: &Work<'_>, s: &mut Scratch) {
        let width = self.facts.value_dim;
        let seen = &work.chunks[0];
        let mut rows = [std::ptr::null(); CHUNK];
        let first = piece.heads.start + work.heads.start;
        let step = self.values_step(seen.chunk);
        let [_, mut later] = s.later;
        for (i, head) in work.heads.clone().enumerate() {
            match step {
                Some(step) if i > 0 => {
                    let next = |row: *const u16| {
                        if row == s.nothing.as_ptr() { row } else { row.wrapping_byte_add(step) }
                    };
                    rows.iter_mut().for_each(|row| *row = next(*row));
                }
                _ => self.value_rows(level, piece.heads.start + head, seen.chunk, &mut rows, s),
            }
            let last = head + 1 == work.heads.end;
            later = match seen.next {
                Some(next) if last => self.later_keys(next, first),
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
            let rows = &rows[..seen.len().next_multiple_of(4)];
            // SAFETY: the level has the instructions; the rows are the pool's or staged.
            unsafe { add(level, &s.open_shares[0], (from, lanes), rows, &later, width, sums) };
        }
    }

    /// Bytes from a head's values to the next one's, if that is all it takes to find those of a chunk.
    fn values_step(&self, chunk: &Chunk) -> Option<usize> {
        let runs = self.views.runs(chunk);
        let rows = |run: &Run| self.pool(run.pool).read_as_values();
        let lie = runs.iter().all(|run| rows(run).kind() == KvType::Bf16);
        runs.first().filter(|_| lie).map(|run| TOGETHER * rows(run).part_bytes())
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
            // SAFETY: as the caller vouches.
            unsafe {
                if in_turns(level, shape) {
                    let queries = &self.turned[now.block * LANES + i * lanes..][..lanes];
                    dots::scores(keys, &next, shape.steps(), queries, &mut lying[i * lanes..][..lanes]);
                } else {
                    let queries = &self.open_queries[block.queries..][..shape.steps()];
                    scores(keys, &next, queries, (i * lanes, lanes), lying);
                }
            }
        }
        // SAFETY: as above.
        unsafe { stand(lying, &mut self.scores[now.place]) };
    }
}

/// Whether queries of few lanes are multiplied as [`dots`] has them: see [`turn`].
pub(super) fn in_turns(level: Level, shape: Shape) -> bool {
    level == Level::Avx512Bf16 && dots::takes(shape.steps())
}

/// Brings lanes' queries, a row of each step's tile, into that form.
pub(super) fn turn(steps: &[Tile], lanes: Range<usize>, to: &mut [Tile]) {
    for lane in lanes {
        // SAFETY: the level of [`in_turns`] has the instructions.
        unsafe { dots::turn(steps, lane, &mut to[lane]) };
    }
}

/// Products of a head's keys with the queries of the `lanes` lanes from `from` on. `queries` has a step's numbers of all lanes each.
///
/// # Safety
/// The machine must have the instructions, and `keys` be 64 rows of as many steps.
unsafe fn scores(
    keys: &Keys,
    later: &Later,
    queries: &[Columns],
    (from, lanes): (usize, usize),
    out: &mut Lying,
) {
    assert!(from + lanes <= LANES);
    // SAFETY: as the caller vouches.
    unsafe {
        match lanes {
            1 => numbers::positions::<1>(keys, later, queries, from, out),
            2 => numbers::positions::<2>(keys, later, queries, from, out),
            3 => numbers::positions::<3>(keys, later, queries, from, out),
            FEW => numbers::positions::<FEW>(keys, later, queries, from, out),
            _ => unreachable!("more lanes than few"),
        }
    }
}

/// Gives every position its row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn stand(lying: &Lying, scores: &mut Scores) {
    for (quarter, rows) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        // SAFETY: 16 numbers each.
        let columns =
            from_fn(|lane| unsafe { _mm512_loadu_si512(lying[lane][quarter * LANES..].as_ptr().cast()) });
        for (row, to) in transposed(columns).into_iter().zip(rows) {
            // SAFETY: 16 numbers.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
        }
    }
}

/// Shares in the form that values are multiplied with.
pub(super) fn open(level: Level, packed: &Packed, shares: &mut Scores) {
    // SAFETY: whoever multiplies like this has the instructions.
    unsafe {
        match level {
            Level::Avx512Bf16 => dots::open(packed, shares),
            _ => numbers::open(packed, shares),
        }
    }
}

/// Adds the values of a chunk's positions, which come by fours, `width` numbers each, to the `sums` of the `lanes` lanes from `from` on, in the order
/// of [`super::coming`]. What is read `later` is asked for.
///
/// # Safety
/// The machine must have the instructions, and each of `rows` point at `width` numbers, which are whole lines.
unsafe fn add(
    level: Level,
    shares: &Scores,
    (from, lanes): (usize, usize),
    rows: &[*const u16],
    later: &Later,
    width: usize,
    sums: &mut [f32],
) {
    assert!(from + lanes <= LANES && sums.len() == lanes * width && width.is_multiple_of(LINE));
    let shares = shares.as_ptr().cast::<f32>().wrapping_add(from);
    // SAFETY: as the caller vouches.
    unsafe {
        if level == Level::Avx512Bf16 {
            return match (lanes, width / LINE) {
                (_, lines) if lines.is_multiple_of(4) => {
                    dots::steps::<1, 4>(shares, rows, later, width, sums)
                }
                (2 | FEW, lines) if lines.is_multiple_of(2) => {
                    dots::steps::<2, 2>(shares, rows, later, width, sums)
                }
                _ => dots::steps::<1, 1>(shares, rows, later, width, sums),
            };
        }
        // As many lines of a row at once as there are registers for.
        match (lanes, width / LINE) {
            (1, lines) if lines.is_multiple_of(4) => numbers::steps::<1, 4>(shares, rows, later, width, sums),
            (1, lines) if lines.is_multiple_of(2) => numbers::steps::<1, 2>(shares, rows, later, width, sums),
            (2, lines) if lines.is_multiple_of(2) => numbers::steps::<2, 2>(shares, rows, later, width, sums),
            (1, _) => numbers::steps::<1, 1>(shares, rows, later, width, sums),
            (2, _) => numbers::steps::<2, 1>(shares, rows, later, width, sums),
            (3, _) => numbers::steps::<3, 1>(shares, rows, later, width, sums),
            (FEW, _) => numbers::steps::<FEW, 1>(shares, rows, later, width, sums),
            _ => unreachable!("more lanes than few"),
        }
    }
}

/// Adds chains (per parity of positions, lane, line and half of a line) to the `sums` of their lanes, from number `at` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn settle<const N: usize, const W: usize>(
    [even, odd]: [[[[__m512; 2]; W]; N]; 2],
    at: usize,
    width: usize,
    sums: &mut [f32],
) {
    for n in 0..N {
        for w in 0..W {
            for half in 0..2 {
                let to = sums[n * width + at + w * LINE + half * LANES..][..LANES].as_mut_ptr();
                let sum = _mm512_add_ps(even[n][w][half], odd[n][w][half]);
                // SAFETY: 16 numbers.
                unsafe { _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum)) };
            }
        }
    }
}
