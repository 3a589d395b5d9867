//! A few lanes of a head, in 512-bit vectors that take rows as they lie.
//!
//! Values never become tiles: a tile of so few rows of shares costs the unit nearly as much as a whole one, and putting values into tiles costs more
//! than multiplying them. Where there is no tile unit, scores are made for 16 positions at a time instead of 16 lanes.
//!
//! The order of summation is the tile unit's: per 32 numbers one chain of fused multiply-adds over the even ones and one over the odd, the two
//! added, that added to the sum. [`numbers`] widens what it multiplies, [`dots`] multiplies pairs.

mod dots;
mod numbers;

use super::products::{FEW, Keys, transposed};
use super::scratch::{Scratch, Tile};
use super::softmax::{self, LANES, Packed, Scores};
use super::soon::Soon;
use super::stretch::{Scored, Work};
use super::view::{CHUNK, Chunk, Run};
use super::{Attend, Piece, Shape};
use crate::Level;
use crate::chains::Columns;
use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

/// Numbers of a row in a line of memory, and positions of a step.
pub(super) const LINE: usize = 32;
/// Where the rows of each 16 positions lie that are read a head later.
pub(super) type Later = [*const u8; 4];
/// Nowhere.
const NOTHING: Later = [std::ptr::null(); 4];

/// Scores of 16 lanes that are not yet a row per position.
type Lying = [[f32; CHUNK]; LANES];

impl Attend<'_> {
    /// Adds a chunk's values, head by head, to the sums of a block whose heads have few lanes each.
    pub(super) fn take_rows(&self, level: Level, piece: &Piece<'_>, work: &Work<'_>, s: &mut Scratch) {
        let width = self.facts.value_dim;
        let seen = &work.chunks[0];
        let mut rows = [std::ptr::null(); CHUNK];
        for (i, head) in work.heads.clone().enumerate() {
            self.value_rows(level, piece.heads.start + head, seen.chunk, &mut rows, s);
            // Nobody sees what is behind, and its shares are zeros.
            let rows = &rows[..seen.len().next_multiple_of(4)];
            let block = &s.blocks[work.blocks.start];
            let (from, lanes) = (i * block.per_head, block.per_head);
            let next = seen.next.filter(|_| head + 1 == work.heads.end);
            let first = piece.heads.start + work.heads.start;
            let keys = next.map_or(Soon::NOTHING, |next| self.soon(next, first).first_half());
            let mut soon = keys.in_parts(asks(width, lanes));
            let later = match next {
                Some(next) => self.later_keys(next, first),
                None if head + 1 < work.heads.end => {
                    self.later_values(seen.chunk, piece.heads.start + head + 1)
                }
                None => NOTHING,
            };
            let first = block.lanes[from] as usize * width;
            let sums = &mut s.sums[first..][..lanes * width];
            softmax::fade(level, sums, width, &s.fades[work.blocks.start][from..from + lanes]);
            // SAFETY: the level has the instructions; the rows are the pool's or staged.
            unsafe { add(level, &s.open_shares[0], (from, lanes), rows, (&mut soon, &later), width, sums) };
        }
    }

    /// One head's keys of a chunk.
    fn later_keys(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, |run| self.pool(run.pool).keys.part(run.slot, head))
    }

    /// One head's values of a chunk.
    pub(super) fn later_values(&self, chunk: &Chunk, head: usize) -> Later {
        self.later(chunk, |run| {
            let pool = self.pool(run.pool);
            pool.values.as_ref().unwrap_or(&pool.keys).part(run.slot, head)
        })
    }

    fn later(&self, chunk: &Chunk, at: impl Fn(&Run) -> *const u8) -> Later {
        let mut later = NOTHING;
        for run in self.views.runs(chunk) {
            let first = run.position as usize % CHUNK;
            for quarter in first / LANES..=(first + run.len as usize - 1) / LANES {
                let skipped = (quarter * LANES).saturating_sub(first) as u32;
                later[quarter] = at(&Run { slot: run.slot + skipped, ..*run });
            }
        }
        later
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
        if in_turns(level, shape) {
            let queries = self.turned[now.block * LANES..].chunks_exact(lanes);
            for (i, ((keys, queries), out)) in
                self.keys.iter().zip(queries).zip(lying.chunks_exact_mut(lanes)).enumerate()
            {
                let later = self.keys.get(i + 1).map_or(self.first_values, |keys| keys.base);
                // SAFETY: as the caller vouches.
                unsafe { dots::scores(keys, &later, shape.steps(), queries, out) };
            }
        } else {
            let queries = self.open_queries[block.queries..].chunks_exact(shape.steps());
            for (i, (keys, queries)) in self.keys.iter().zip(queries).enumerate() {
                // SAFETY: as the caller vouches.
                unsafe { scores(keys, queries, (i * lanes, lanes), lying) };
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

/// How often [`add`] asks for what comes later.
fn asks(width: usize, lanes: usize) -> usize {
    CHUNK / LINE * width / LINE / lines_at_once(width, lanes)
}

/// Lines of a row that are multiplied at once: as many as there are registers for.
fn lines_at_once(width: usize, lanes: usize) -> usize {
    match (lanes, width / LINE) {
        (1, lines) if lines.is_multiple_of(4) => 4,
        (1 | 2, lines) if lines.is_multiple_of(2) => 2,
        _ => 1,
    }
}

/// Products of a head's keys with the queries of the `lanes` lanes from `from` on. `queries` has a step's numbers of all lanes each.
///
/// # Safety
/// The machine must have the instructions, and `keys` be 64 rows of as many steps.
unsafe fn scores(keys: &Keys, queries: &[Columns], (from, lanes): (usize, usize), out: &mut Lying) {
    assert!(from + lanes <= LANES);
    // SAFETY: as the caller vouches.
    unsafe {
        match lanes {
            1 => numbers::positions::<1>(keys, queries, from, out),
            2 => numbers::positions::<2>(keys, queries, from, out),
            3 => numbers::positions::<3>(keys, queries, from, out),
            FEW => numbers::positions::<FEW>(keys, queries, from, out),
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
/// of [`super::coming`]. What is read behind them is asked for: `soon` where vectors are of numbers, `later` where they are of pairs, which is where other
/// processors are.
///
/// # Safety
/// The machine must have the instructions, and each of `rows` point at `width` numbers, which are whole lines.
unsafe fn add(
    level: Level,
    shares: &Scores,
    (from, lanes): (usize, usize),
    rows: &[*const u16],
    (soon, later): (&mut Soon, &Later),
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
        match (lanes, lines_at_once(width, lanes)) {
            (1, 4) => numbers::steps::<1, 4>(shares, rows, width, sums, soon),
            (1, 2) => numbers::steps::<1, 2>(shares, rows, width, sums, soon),
            (1, _) => numbers::steps::<1, 1>(shares, rows, width, sums, soon),
            (2, 2) => numbers::steps::<2, 2>(shares, rows, width, sums, soon),
            (2, _) => numbers::steps::<2, 1>(shares, rows, width, sums, soon),
            (3, _) => numbers::steps::<3, 1>(shares, rows, width, sums, soon),
            (FEW, _) => numbers::steps::<FEW, 1>(shares, rows, width, sums, soon),
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
