//! A few lanes of a head, in 512-bit vectors that take rows as they lie.
//!
//! Values never become tiles: a tile of so few rows of shares costs the unit nearly as much as a whole one, and putting values into tiles costs more
//! than multiplying them. Where there is no tile unit, scores are made for 16 positions at a time instead of 16 lanes.
//!
//! The order of summation is the tile unit's: per 32 numbers one chain of fused multiply-adds over the even ones and one over the odd, the two
//! added, that added to the sum.

mod dots;
mod numbers;

use super::products::{FEW, Keys, transposed};
use super::scratch::Scratch;
use super::softmax::{self, LANES, Packed, Scores};
use super::soon::Soon;
use super::stretch::{Scored, Work};
use super::view::CHUNK;
use super::{Attend, Piece, Shape};
use crate::Level;
use crate::chains::Columns;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Numbers of a row in a line of memory, and positions of a step.
pub(super) const LINE: usize = 32;
/// How far ahead of a row memory is asked for, in bytes: inside a small page, where it also sets the processor's own prefetching going.
const AHEAD: usize = 3072;

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
            let first = block.lanes[from] as usize * width;
            let sums = &mut s.sums[first..][..lanes * width];
            softmax::fade(level, sums, width, &s.fades[work.blocks.start][from..from + lanes]);
            // SAFETY: the level has the instructions; the rows are the pool's or staged.
            unsafe { add(level, &s.open_shares[0], (from, lanes), rows, width, sums, &mut soon) };
        }
    }
}

impl Scratch {
    /// Products of a chunk's keys with the queries of a block whose heads have few lanes, where there is no tile unit.
    ///
    /// # Safety
    /// The machine must have the instructions, the block's queries and the keys must be there.
    pub(super) unsafe fn score_few(&mut self, level: Level, shape: Shape, now: Scored) {
        let block = &self.blocks[now.block];
        let queries = self.open_queries[block.queries..].chunks_exact(shape.steps());
        let Some(lying) = self.lying_scores.first_chunk_mut() else { return };
        for ((keys, queries), from) in self.keys.iter().zip(queries).zip((0..).step_by(block.per_head)) {
            // SAFETY: as the caller vouches.
            unsafe { scores(level, keys, queries, (from, block.per_head), lying) };
        }
        // SAFETY: as above.
        unsafe { stand(lying, &mut self.scores[now.place]) };
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

/// Asks for what is read soon, and reads a line.
///
/// # Safety
/// The machine must have the instructions, and there must be 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn line(at: *const u8) -> __m512i {
    // SAFETY: a hint, whatever the address; the caller's bytes.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
        _mm512_loadu_si512(at.cast())
    }
}

/// Products of a head's keys with the queries of the `lanes` lanes from `from` on. `queries` has a step's numbers of all lanes each.
///
/// # Safety
/// The machine must have the instructions, and `keys` be 64 rows of as many steps.
unsafe fn scores(
    level: Level,
    keys: &Keys,
    queries: &[Columns],
    (from, lanes): (usize, usize),
    out: &mut Lying,
) {
    assert!(from + lanes <= LANES);
    macro_rules! positions {
        ($n:expr) => {
            match level {
                Level::Avx512Bf16 => dots::positions::<{ $n }>(keys, queries, from, out),
                _ => numbers::positions::<{ $n }>(keys, queries, from, out),
            }
        };
    }
    // SAFETY: as the caller vouches.
    unsafe {
        match lanes {
            1 => positions!(1),
            2 => positions!(2),
            3 => positions!(3),
            FEW => positions!(FEW),
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

/// Adds the values of four times so many of a chunk's positions, `width` numbers each, to the `sums` of the `lanes` lanes from `from` on, in the order of [`super::coming`].
///
/// # Safety
/// The machine must have the instructions, and each of `rows` point at `width` numbers, which are whole lines.
unsafe fn add(
    level: Level,
    shares: &Scores,
    (from, lanes): (usize, usize),
    rows: &[*const u16],
    width: usize,
    sums: &mut [f32],
    soon: &mut Soon,
) {
    assert!(from + lanes <= LANES && sums.len() == lanes * width && width.is_multiple_of(LINE));
    let shares = shares.as_ptr().cast::<f32>().wrapping_add(from);
    macro_rules! steps {
        ($n:expr, $w:literal) => {
            match level {
                Level::Avx512Bf16 => dots::steps::<{ $n }, $w>(shares, rows, width, sums, soon),
                _ => numbers::steps::<{ $n }, $w>(shares, rows, width, sums, soon),
            }
        };
    }
    // SAFETY: as the caller vouches.
    unsafe {
        match (lanes, lines_at_once(width, lanes)) {
            (1, 4) => steps!(1, 4),
            (1, 2) => steps!(1, 2),
            (1, _) => steps!(1, 1),
            (2, 2) => steps!(2, 2),
            (2, _) => steps!(2, 1),
            (3, _) => steps!(3, 1),
            (FEW, _) => steps!(FEW, 1),
            _ => unreachable!("more lanes than few"),
        }
    }
}
