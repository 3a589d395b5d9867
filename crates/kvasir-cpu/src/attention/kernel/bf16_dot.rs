//! Attention in bf16 pair dot products (`vdpbf16ps`): the GEMMs of blocks of many query rows
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

use crate::attention::decode::{self, ValueRows};
use crate::attention::kernel::{AttentionKernel, ChunkTiles, PvTiles};
use crate::attention::softmax::pipeline::{AttentionWeights, SoftmaxPipeline};
use crate::attention::softmax::state::{ChunkMask, OnlineSoftmax, PackedWeights, Scores};
use crate::attention::softmax::{avx512, decode as decode_softmax};
use crate::attention::staged_kv::{KeyRows, StagedKv};
use crate::attention::work::ScoredBlock;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::isa::vectors::v512::{add_each, add_pairs};
use std::arch::x86_64::*;
use std::array::from_fn;

/// The kernels in bf16 pair dot products, for a machine that has them.
pub(crate) struct Bf16Dot;

impl AttentionKernel for Bf16Dot {
    const DECODES_ROWS: bool = true;

    fn isa(&self) -> Isa {
        Isa::AVX512_BF16
    }

    unsafe fn scores(&mut self, now: ScoredBlock<'_>, kv: &mut StagedKv, to: &mut SoftmaxPipeline) {
        let (queries, keys, out) = (now.queries(), &kv.keys.heads[0], &mut to.scores[now.place]);
        let (first, steps) = (queries.as_ptr().cast(), queries.len());
        // SAFETY: the machine has the instructions; the block has a query tile per step, and keys
        // are 64 rows; as the caller vouches.
        unsafe {
            match steps {
                _ if now.work.decode => {
                    for (keys, rows) in decode::heads(kv, now) {
                        decode::bf16_dot::scores(keys, queries, rows, &mut to.rows[0]);
                    }
                }
                2 => scores_of::<2>(keys, first, steps, out),
                4 => scores_of::<4>(keys, first, steps, out),
                _ => scores_of::<0>(keys, first, steps, out),
            }
        }
    }

    fn begin_softmax(&self, now: ScoredBlock<'_>, mask: Option<ChunkMask<'_>>, to: &mut SoftmaxPipeline) {
        let softmax = &mut to.softmax[now.place];
        if !now.work.decode {
            return softmax.begin(self.isa(), &mut to.scores[now.place], mask, now.work.scaling);
        }
        let (scores, rows) = (&mut to.rows[0], now.block().used());
        // SAFETY: the machine has the instructions.
        unsafe { decode_softmax::begin(softmax, scores, rows, mask, now.work.scaling) };
    }

    fn finish_weights(&self, softmax: &mut OnlineSoftmax, scores: &Scores, packed: &mut PackedWeights) {
        // SAFETY: the machine has the instructions.
        unsafe { avx512::weights_in_bf16_dot_order(softmax, scores, packed) };
    }

    fn decode_weights(&self, now: ScoredBlock<'_>, from: &mut SoftmaxPipeline, to: &mut AttentionWeights) {
        let (softmax, rows) = (&mut from.softmax[now.place], now.block().used());
        // SAFETY: the machine has the instructions.
        unsafe { decode_softmax::finish_weights(softmax, &from.rows[0], rows, &mut to.tiles[0]) };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
    unsafe fn values(&mut self, tiles: PvTiles<'_>, sums: &mut [f32], mut during: impl FnMut()) {
        let (width, rows) = (tiles.width, sums.len() / tiles.width);
        for ChunkTiles { weights, values } in tiles.chunks {
            for at in (0..width).step_by(2 * LANES) {
                let tiles = values.wrapping_add(at / LANES * 2048);
                let mut row = 0;
                while row < rows {
                    let (left, weights) = (rows - row, weights.wrapping_add(row * 64));
                    let sums = sums[row * width + at..].as_mut_ptr();
                    // SAFETY: two tiles of weights, two tiles of V for each 16 columns, and a row of
                    // O per query row.
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
    }

    unsafe fn decode_values(&self, p: &AttentionWeights, first: usize, v: ValueRows<'_>, sums: &mut [f32]) {
        // SAFETY: the machine has the instructions; as the caller vouches.
        unsafe { decode::bf16_dot::accumulate(&p.tiles[0], first, v, sums) };
    }
}

/// K rows multiplied at once (register blocking).
const AT_ONCE: usize = 4;

/// S = Q K^T for rows of `S` steps of 32 numbers, or `steps` if `S` is 0.
///
/// # Safety
/// The machine must have the instructions. `queries` must be `steps` tiles, and the keys 64 rows of
/// as many steps.
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
