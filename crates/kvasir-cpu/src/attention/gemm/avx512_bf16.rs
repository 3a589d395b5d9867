//! Attention GEMMs in bf16 pair dot products (`vdpbf16ps`), for blocks of many query rows
//! (prefill). Operands are used as stored: nothing is widened or transposed.
//!
//! These kernels define a summation order of their own (decision 0023):
//!
//! - A score has 16 accumulators, one per word (bf16 pair) of a 64-byte line, each over the lines
//!   of a row. They are reduced by halves: 8 + 8, then 4 + 4, and so on.
//! - The denominator of a chunk has 16 accumulators, one per position modulo 16, reduced likewise.
//! - An output number is one accumulator over all positions.
//! - Of a pair the later number is added first, as the instruction does.
//!
//! `decode/bf16_dot.rs` has the decode kernels of the same order; `reference.rs` is the scalar
//! reference.

use crate::attention::gemm::operands::{ChunkTiles, KeyRows};
use crate::attention::softmax::state::Scores;
use crate::isa::tile::LANES;
use crate::isa::vectors::v512::{add_each, add_pairs};
use std::arch::x86_64::*;
use std::array::from_fn;

/// K rows multiplied at once (register blocking).
const AT_ONCE: usize = 4;

/// S = Q K^T; see [`widened::scores`](crate::attention::gemm::widened::scores).
///
/// # Safety
/// As for [`widened::scores`](crate::attention::gemm::widened::scores), and the machine must have
/// the instructions.
pub(crate) unsafe fn scores(keys: &KeyRows, queries: *const u8, steps: usize, out: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe {
        match steps {
            2 => scores_of::<2>(keys, queries, steps, out),
            4 => scores_of::<4>(keys, queries, steps, out),
            _ => scores_of::<0>(keys, queries, steps, out),
        }
    }
}

/// S = Q K^T for rows of `S` steps of 32 numbers, or `steps` if `S` is 0.
///
/// # Safety
/// As for [`widened::scores`](crate::attention::gemm::widened::scores), and the machine must have
/// the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn scores_of<const S: usize>(keys: &KeyRows, queries: *const u8, steps: usize, out: &mut Scores) {
    let steps = if S == 0 { steps } else { S };
    for (four, out) in out.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate() {
        let (quarter, row) = (four * AT_ONCE / LANES, four * AT_ONCE % LANES);
        let (base, stride) = (keys.base[quarter], keys.stride[quarter]);
        let rows: [_; AT_ONCE] = from_fn(|n| base.wrapping_add((row + n) * stride));
        // The accumulators of one word of a line, for all query rows.
        let one = |place: usize| {
            let mut chains = [_mm512_setzero_ps(); AT_ONCE];
            for step in 0..steps {
                // SAFETY: a row of the caller's query tile, and a word of each K row.
                unsafe {
                    let query = _mm512_loadu_si512(queries.wrapping_add(step * 1024 + place * 64).cast());
                    for n in 0..AT_ONCE {
                        let word = rows[n].wrapping_add(step * 64 + place * 4).cast::<i32>().read_unaligned();
                        chains[n] = add_pairs(chains[n], query, _mm512_set1_epi32(word));
                    }
                }
            }
            chains
        };
        let two = |place| add_each(one(place), one(place + 8));
        let four = |place| add_each(two(place), two(place + 4));
        let eight = |place| add_each(four(place), four(place + 2));
        for (out, sum) in out.iter_mut().zip(add_each(eight(0), eight(1))) {
            // SAFETY: 16 numbers are written.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }
}

/// O += P V for one chunk; see [`widened::values`](crate::attention::gemm::widened::values).
///
/// # Safety
/// As for [`widened::values`](crate::attention::gemm::widened::values), and the machine must have
/// the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(crate) unsafe fn values(
    ChunkTiles { weights, values }: ChunkTiles,
    sums: &mut [f32],
    width: usize,
    mut during: impl FnMut(),
) {
    let rows = sums.len() / width;
    for at in (0..width).step_by(2 * LANES) {
        let tiles = values.wrapping_add(at / LANES * 2048);
        let mut row = 0;
        while row < rows {
            let (left, weights) = (rows - row, weights.wrapping_add(row * 64));
            let sums = sums[row * width + at..].as_mut_ptr();
            // SAFETY: two tiles of weights, two tiles of V for each 16 columns, and a row of O per
            // query row.
            row += unsafe {
                match left {
                    8.. => two_tiles::<8>(weights, tiles, sums, width),
                    4.. => two_tiles::<4>(weights, tiles, sums, width),
                    _ => two_tiles::<1>(weights, tiles, sums, width),
                }
            };
        }
        during();
        during();
    }
}

/// O += P V for 32 columns of a chunk's V and `N` query rows; returns `N`.
///
/// # Safety
/// There must be two tiles of weights, two for each 16 columns of V, and accumulators of `N` query
/// rows, `width` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn two_tiles<const N: usize>(
    weights: *const u8,
    values: *const u8,
    sums: *mut f32,
    width: usize,
) -> usize {
    let place = |n: usize, tile: usize| sums.wrapping_add(n * width + tile * LANES);
    // SAFETY: as the caller vouches.
    unsafe {
        let mut chains: [[__m512; 2]; N] = from_fn(|n| from_fn(|tile| _mm512_loadu_ps(place(n, tile))));
        for pair in 0..2 * LANES {
            let (step, row) = (pair / LANES * 1024, pair % LANES);
            let two: [_; 2] =
                from_fn(|tile| _mm512_loadu_si512(values.wrapping_add(tile * 2048 + step + row * 64).cast()));
            for n in 0..N {
                let word = weights.wrapping_add(step + n * 64 + row * 4).cast::<i32>().read_unaligned();
                let weight = _mm512_set1_epi32(word);
                for tile in 0..2 {
                    chains[n][tile] = add_pairs(chains[n][tile], two[tile], weight);
                }
            }
        }
        for n in 0..N {
            for tile in 0..2 {
                _mm512_storeu_ps(place(n, tile), chains[n][tile]);
            }
        }
    }
    N
}
