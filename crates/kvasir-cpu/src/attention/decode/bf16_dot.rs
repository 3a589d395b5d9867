//! Decode attention (GEMV) in bf16 pair dot products (`vdpbf16ps`): K and V rows are multiplied in
//! place, one row at a time.
//!
//! - `scores`: S = Q K^T for up to 4 query rows at a time, with the queries in registers.
//! - `accumulate`: O += P V for up to 4 query rows, two positions per instruction.
//!
//! Sums are reduced in the order of [`kernel::bf16_dot`](crate::attention::kernel::bf16_dot).
//! Each loop advances its load by one row, a stride that the hardware prefetcher follows. Strides
//! of 1 KB or more, as in a loop that transposes rows, lose half of the bandwidth. Software
//! prefetch does not recover it. For consecutive rows only the start of the next page is
//! prefetched.

use crate::attention::decode::{LINE, ValueRows, VisibleKeys};
use crate::attention::softmax::state::ScoreRows;
use crate::isa::tile::{LANES, STEP, Tile};
use crate::isa::vectors::v512::{add_pairs, reduce_by_halves};
use crate::kernels::GEMV_ROWS;
use crate::memory::kv_pool::rows::CHUNK;
use crate::prefetch::hint::prefetch_next_page;
use std::arch::asm;
use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::Range;

/// S = Q K^T of one KV head and its query rows. `queries` has a tile per step of 32 numbers, a row
/// per query row; `out` a row per query row.
///
/// # Safety
/// The machine must have the instructions of `avx512-bf16`, and the keys must be 64 rows of as many
/// steps as there are query tiles.
pub(crate) unsafe fn scores(
    keys: VisibleKeys<'_>,
    queries: &[Tile],
    rows: Range<usize>,
    out: &mut ScoreRows,
) {
    macro_rules! kernel {
        ($from:expr, $n:literal) => {
            match queries.len() {
                2 => positions::<$n, 2>(keys, queries, $from, out),
                4 => positions::<$n, 4>(keys, queries, $from, out),
                _ => positions::<$n, 0>(keys, queries, $from, out),
            }
        };
    }
    for first in rows.clone().step_by(GEMV_ROWS) {
        // SAFETY: as the caller vouches.
        unsafe {
            match rows.end - first {
                1 => kernel!(first, 1),
                2 => kernel!(first, 2),
                3 => kernel!(first, 3),
                _ => kernel!(first, 4),
            }
        }
    }
}

/// O += P V for some query rows of one head, over an even number of positions. `weights` has the
/// attention weights as bf16: a row per query row from `first` on, two positions per word.
///
/// # Safety
/// The machine must have the instructions, and the width of the V rows must be a multiple of
/// [`LINE`].
pub(crate) unsafe fn accumulate(weights: &[Tile; 2], first: usize, v: ValueRows<'_>, sums: &mut [f32]) {
    let width = v.width;
    let lines = width / LINE;
    // Register blocking: a row's accumulators of one line take two registers. Two rows of four
    // lines leave room for the operands, and read whole rows.
    let at_once = if lines.is_multiple_of(4) { 2 } else { GEMV_ROWS };
    for (n, sums) in sums.chunks_mut(at_once * width).enumerate() {
        let rows = sums.len() / width;
        let first = first + n * at_once;
        macro_rules! kernel {
            ($rows:literal, $lines:literal) => {{
                let weights: [WeightRow; $rows] =
                    from_fn(|n| weights.each_ref().map(|tile| tile[first + n].as_ptr()));
                add_values::<$rows, $lines>(&weights, v, sums.as_mut_ptr())
            }};
        }
        // SAFETY: as the caller vouches.
        unsafe {
            match (rows, lines) {
                (1, lines) if lines.is_multiple_of(4) => kernel!(1, 4),
                (_, lines) if lines.is_multiple_of(4) => kernel!(2, 4),
                (1, lines) if lines.is_multiple_of(2) => kernel!(1, 2),
                (2, lines) if lines.is_multiple_of(2) => kernel!(2, 2),
                (3, lines) if lines.is_multiple_of(2) => kernel!(3, 2),
                (_, lines) if lines.is_multiple_of(2) => kernel!(4, 2),
                (1, _) => kernel!(1, 1),
                (2, _) => kernel!(2, 1),
                (3, _) => kernel!(3, 1),
                _ => kernel!(4, 1),
            }
        }
    }
}

/// Scores of `N` query rows from `from` on: see [`scores`]. Keys have `S` steps of 32 numbers, or
/// as many as there are query tiles if `S` is 0.
///
/// # Safety
/// The machine must have the instructions, and the keys must be 64 rows of as many steps.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn positions<const N: usize, const S: usize>(
    VisibleKeys { keys, visible, next_head }: VisibleKeys<'_>,
    queries: &[Tile],
    from: usize,
    out: &mut ScoreRows,
) {
    let query = |step: usize, n: usize| {
        // SAFETY: a tile row of 64 bytes.
        unsafe { _mm512_loadu_si512(queries[step][from + n].as_ptr().cast()) }
    };
    let held: [[__m512i; N]; S] = from_fn(|step| from_fn(|n| query(step, n)));
    let mut even = [_mm512_setzero_ps(); N];
    for row in 0..visible.next_multiple_of(2) {
        let quarter = row / LANES;
        let at = keys.base[quarter].wrapping_add(row % LANES * keys.stride[quarter]);
        if next_head.is_some() {
            next_head.prefetch_row(row, 0..queries.len());
        } else {
            prefetch_next_page(at);
        }
        let mut chains = [_mm512_setzero_ps(); N];
        for step in 0..if S == 0 { queries.len() } else { S } {
            // SAFETY: the caller's rows.
            let words = unsafe { _mm512_loadu_si512(at.wrapping_add(step * 64).cast()) };
            for n in 0..N {
                let query = if S == 0 { query(step, n) } else { held[step][n] };
                chains[n] = add_pairs(chains[n], words, query);
            }
        }
        if opaque(row).is_multiple_of(2) {
            even = chains;
            continue;
        }
        for n in (0..N).step_by(2) {
            let other = N.min(n + 2) - 1;
            let chains = [even[n], chains[n], even[other], chains[other]];
            let sums = reduce_by_halves(chains, |a, b| _mm512_add_ps(a, b));
            for (n, sums) in [n, other].into_iter().zip(sums.as_chunks::<2>().0) {
                out[from + n][row - 1..=row].copy_from_slice(sums);
            }
        }
    }
}

/// Attention weights of one query row: two positions per word, in two halves of a chunk.
type WeightRow = [*const u32; CHUNK / STEP];

/// O += P V for `N` query rows, `W` lines of a V row at a time.
///
/// # Safety
/// The machine must have the instructions. There must be weights of all positions. Each V row
/// must point at `width` numbers, a multiple of `W` lines; `sums` must have as many per query row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn add_values<const N: usize, const W: usize>(
    weights: &[WeightRow; N],
    ValueRows { rows, offset, width, next_head }: ValueRows<'_>,
    sums: *mut f32,
) {
    for at in (0..width).step_by(W * LINE) {
        let place =
            |n: usize, w: usize, half: usize| sums.wrapping_add(n * width + at + w * LINE + half * LANES);
        // SAFETY: the caller's sums.
        let mut chains: [[[__m512; 2]; W]; N] =
            from_fn(|n| from_fn(|w| from_fn(|half| unsafe { _mm512_loadu_ps(place(n, w, half)) })));
        for (half, rows) in rows.chunks(STEP).enumerate() {
            let mut even = [_mm512_setzero_si512(); W];
            for (n, row) in rows.iter().enumerate() {
                if next_head.is_some() {
                    next_head.prefetch_row(half * STEP + n, at / LINE..at / LINE + W);
                } else {
                    prefetch_next_page(row.wrapping_byte_add(offset).cast());
                }
                let line = |w| row.wrapping_byte_add(offset).wrapping_add(at + w * LINE).cast();
                // SAFETY: the caller's rows.
                let now = from_fn(|w| unsafe { _mm512_loadu_si512(line(w)) });
                if opaque(n).is_multiple_of(2) {
                    even = now;
                    continue;
                }
                // SAFETY: the caller's weights.
                let weights: [_; N] =
                    from_fn(|i| unsafe { _mm512_set1_epi32(*weights[i][half].wrapping_add(n / 2).cast()) });
                for w in 0..W {
                    let halves =
                        [_mm512_unpacklo_epi16(even[w], now[w]), _mm512_unpackhi_epi16(even[w], now[w])];
                    for n in 0..N {
                        for half in 0..2 {
                            chains[n][w][half] = add_pairs(chains[n][w][half], halves[half], weights[n]);
                        }
                    }
                }
            }
        }
        for n in 0..N {
            for w in 0..W {
                for half in 0..2 {
                    // SAFETY: the caller's sums.
                    unsafe { _mm512_storeu_ps(place(n, w, half), chains[n][w][half]) };
                }
            }
        }
    }
}

/// Hides a number from the optimizer, which would otherwise unroll by two rows and split the loop's
/// load in two: the hardware prefetcher follows two strided loads less well.
#[inline(always)]
fn opaque(mut n: usize) -> usize {
    // SAFETY: the assembly is empty.
    unsafe { asm!("/* {0} */", inout(reg) n, options(pure, nomem, nostack, preserves_flags)) };
    n
}
