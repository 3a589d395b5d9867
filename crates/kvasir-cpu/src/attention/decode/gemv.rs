//! Decode attention kernels in f32 (GEMV): bf16 rows of K and V are widened once for all query rows.
//! The kernels are generated for AVX2 and AVX-512, and picked by SIMD width and number of query
//! rows.

use crate::attention::decode::{LINE, ValueRows, VisibleKeys};
use crate::attention::softmax::state::{PackedWeights, ScoreRows, Scores};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::GEMV_ROWS;
use crate::memory::kv_pool::rows::CHUNK;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use std::ops::Range;

/// Runs `$body` with `$v` as the kernels of the SIMD width.
macro_rules! in_vectors {
    ($isa:expr, $v:ident => $body:expr) => {
        if $isa.has_avx512() {
            use v512 as $v;
            $body
        } else {
            use v256 as $v;
            $body
        }
    };
}

/// S = Q K^T of one KV head and its query rows. `queries` has their numbers per step of 32.
///
/// # Safety
/// The machine must have the instruction set, and `keys` must be 64 rows of as many steps as
/// `queries`.
pub(crate) unsafe fn scores(
    isa: Isa,
    keys: VisibleKeys<'_>,
    queries: &[OperandB],
    rows: Range<usize>,
    out: &mut ScoreRows,
) {
    assert!(rows.end <= LANES);
    for first in rows.clone().step_by(GEMV_ROWS) {
        // SAFETY: as the caller vouches.
        unsafe {
            in_vectors!(isa, v => match rows.end - first {
                1 => v::positions::<1>(keys, queries, first, out),
                2 => v::positions::<2>(keys, queries, first, out),
                3 => v::positions::<3>(keys, queries, first, out),
                _ => v::positions::<GEMV_ROWS>(keys, queries, first, out),
            });
        }
    }
}

/// Widens attention weights to f32.
///
/// # Safety
/// The instruction set must have AVX2.
pub(crate) unsafe fn widen_weights(isa: Isa, packed: &PackedWeights, weights: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(isa, v => v::widen_weights(packed, weights)) };
}

/// O += P V for query rows of one head from `first` on, over an even number of positions. `sums` is
/// in the column order of [`packed_values`](crate::attention::packed_values).
///
/// # Safety
/// The machine must have the instruction set.
pub(crate) unsafe fn accumulate(isa: Isa, p: &Scores, first: usize, v: ValueRows<'_>, sums: &mut [f32]) {
    let (width, rows) = (v.width, sums.len() / v.width);
    assert!(first + rows <= LANES && sums.len() == rows * width && width.is_multiple_of(LINE));
    let weights = p.as_ptr().cast::<f32>().wrapping_add(first);
    for (n, sums) in sums.chunks_mut(GEMV_ROWS * width).enumerate() {
        let weights = weights.wrapping_add(n * GEMV_ROWS);
        // Register blocking: as much of a row at once as there are registers for.
        macro_rules! steps {
            ($vectors:ident, $rows:expr, $vectors_of_row:expr) => {
                $vectors::steps::<{ $rows }, { $vectors_of_row }>(weights, v, sums)
            };
        }
        // SAFETY: as the caller vouches.
        unsafe {
            match (isa.has_avx512(), sums.len() / width, width / LINE) {
                (false, 1, lines) if lines.is_multiple_of(2) => steps!(v256, 1, 4),
                (false, 1, _) => steps!(v256, 1, 2),
                (false, 2, _) => steps!(v256, 2, 2),
                (false, 3, _) => steps!(v256, 3, 1),
                (false, ..) => steps!(v256, GEMV_ROWS, 1),
                (true, 1, lines) if lines.is_multiple_of(4) => steps!(v512, 1, 4),
                (true, 1, lines) if lines.is_multiple_of(2) => steps!(v512, 1, 2),
                (true, 2, lines) if lines.is_multiple_of(2) => steps!(v512, 2, 2),
                (true, 1, _) => steps!(v512, 1, 1),
                (true, 2, _) => steps!(v512, 2, 1),
                (true, 3, _) => steps!(v512, 3, 1),
                (true, ..) => steps!(v512, GEMV_ROWS, 1),
            }
        }
    }
}

/// Transposes scores from a row per query row to a row per position.
///
/// # Safety
/// The instruction set must have AVX2.
pub(crate) unsafe fn transpose_scores(isa: Isa, rows: &ScoreRows, scores: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(isa, v => v::transpose_scores(rows, scores)) };
}

macro_rules! kernels {
    ($vectors:ident, $features:literal, into: $cache:ident) => {
        pub(crate) mod $vectors {
            use super::*;
            use crate::isa::vectors::$vectors::*;

            /// Numbers of bf16 in a SIMD vector.
            pub(crate) const HALVES: usize = 2 * WORDS;

            /// S = Q K^T of one KV head for `N` query rows from `from` on, a SIMD vector of
            /// positions at a time, up to the last visible one.
            ///
            /// # Safety
            /// As for [`scores`].
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn positions<const N: usize>(
                VisibleKeys { keys, visible, next_head }: VisibleKeys<'_>,
                queries: &[OperandB],
                from: usize,
                out: &mut ScoreRows,
            ) {
                for first in (0..visible).step_by(WORDS) {
                    let (quarter, at) = (first / LANES, first % LANES);
                    let next = keys.base.get(quarter + 1).copied().unwrap_or(next_head.at[0]);
                    let mut sums = [zero_floats(); N];
                    for (step, queries) in queries.iter().enumerate() {
                        // Prefetches a line for each of the rows that are read.
                        for n in at..at + WORDS {
                            let line = next.wrapping_add(step * 1024 + n * 64);
                            prefetch_line(CacheLevel::$cache, line);
                        }
                        let mut chains = [[zero_floats(); 2]; N];
                        for part in 0..LANES / WORDS {
                            let mut rows = [zero(); WORDS];
                            for (n, row) in rows.iter_mut().enumerate() {
                                let line = keys.base[quarter]
                                    .wrapping_add((at + n) * keys.stride[quarter] + step * 64);
                                // SAFETY: as the caller vouches.
                                *row = unsafe { load(line.wrapping_add(part * WORDS * 4)) };
                            }
                            for (pair, keys) in transpose_square(rows).into_iter().enumerate() {
                                for (odd, keys) in widen_bf16(keys).into_iter().enumerate() {
                                    for n in 0..N {
                                        let query =
                                            splat_floats(queries.number(odd, part * WORDS + pair, from + n));
                                        chains[n][odd] = fma(keys, query, chains[n][odd]);
                                    }
                                }
                            }
                        }
                        for n in 0..N {
                            sums[n] = add(sums[n], add(chains[n][0], chains[n][1]));
                        }
                    }
                    for n in 0..N {
                        // SAFETY: one vector of numbers within a row of 64.
                        unsafe { store_floats(out[from + n][first..].as_mut_ptr(), sums[n]) };
                    }
                }
            }

            /// Widens attention weights to f32, a row per position.
            #[target_feature(enable = $features)]
            pub(crate) fn widen_weights(packed: &PackedWeights, weights: &mut Scores) {
                for (pair, to) in packed.iter().zip(weights.as_chunks_mut::<2>().0) {
                    for query in (0..LANES).step_by(WORDS) {
                        // SAFETY: one vector of words, and one of numbers, within rows of 16.
                        unsafe {
                            let both = widen_bf16(load(pair[query..].as_ptr().cast()));
                            for (to, numbers) in to.iter_mut().zip(both) {
                                store_floats(to[query..].as_mut_ptr(), numbers);
                            }
                        }
                    }
                }
            }

            /// O += P V for `N` query rows, `W` vectors of a V row at a time. Prefetches the next
            /// head's rows into L2.
            ///
            /// # Safety
            /// As for [`accumulate`].
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn steps<const N: usize, const W: usize>(
                weights: *const f32,
                ValueRows { rows, offset, width, next_head }: ValueRows<'_>,
                sums: &mut [f32],
            ) {
                // One prefetched line for each vector of the rows that the first phase reads.
                const { assert!(HALVES * PHASES == LINE) };
                // Prefetches in memory order, whatever the order of the loops.
                let mut prefetched = next_head.parts(width / (W * HALVES));
                for (step, rows) in rows.chunks(LINE).enumerate() {
                    for at in (0..width).step_by(W * HALVES) {
                        // Accumulators by parity of position, query row, vector and half of a
                        // vector.
                        let mut chains = [[[[zero_floats(); 2]; W]; N]; 2];
                        for phase in 0..PHASES {
                            for (half, rows) in rows.chunks(LANES).enumerate() {
                                let mut prefetch = if phase == 0 {
                                    prefetched.next().unwrap_or(next_head.at[0])
                                } else {
                                    std::ptr::null()
                                };
                                for (pair, rows) in rows.as_chunks::<2>().0.iter().enumerate() {
                                    for odd in phase..phase + 2 / PHASES {
                                        let mut values = [[zero_floats(); 2]; W];
                                        for (w, values) in values.iter_mut().enumerate() {
                                            if phase == 0 {
                                                prefetch_line(CacheLevel::L2, prefetch.wrapping_add(w * 64));
                                            }
                                            let v = rows[odd]
                                                .wrapping_byte_add(offset)
                                                .wrapping_add(at + w * HALVES);
                                            // SAFETY: the caller's rows.
                                            *values = widen_fours(unsafe { load(v.cast()) });
                                        }
                                        prefetch = prefetch.wrapping_add(W * 64);
                                        let row = step * LINE + half * LANES + 2 * pair + odd;
                                        let weights = weights.wrapping_add(row * LANES);
                                        for n in 0..N {
                                            // SAFETY: there are weights of 64 positions.
                                            let x = splat_floats(unsafe { *weights.add(n) });
                                            for w in 0..W {
                                                for half in 0..2 {
                                                    let chain = &mut chains[odd][n][w][half];
                                                    *chain = fma(values[w][half], x, *chain);
                                                }
                                            }
                                        }
                                    }
                                }
                            }
                        }
                        add_to_sums(chains, at, width, sums);
                    }
                }
            }

            /// Adds the accumulators (by parity of position, query row, vector and half of a
            /// vector) to `sums`, from number `at` of a V row on.
            #[inline]
            #[target_feature(enable = $features)]
            fn add_to_sums<const N: usize, const W: usize>(
                [even, odd]: [[[[Floats; 2]; W]; N]; 2],
                at: usize,
                width: usize,
                sums: &mut [f32],
            ) {
                for n in 0..N {
                    for w in 0..W {
                        for half in 0..2 {
                            // Column order of packed V: of each line the first halves come first.
                            let at = at + w * HALVES;
                            let place = at / LINE * LINE + half * LANES + at % LINE / 2;
                            let to = sums[n * width + place..][..WORDS].as_mut_ptr();
                            let sum = add(even[n][w][half], odd[n][w][half]);
                            // SAFETY: one vector of numbers.
                            unsafe { store_floats(to, add(load_floats(to), sum)) };
                        }
                    }
                }
            }

            /// Transposes scores from a row per query row to a row per position.
            #[target_feature(enable = $features)]
            pub(crate) fn transpose_scores(rows: &ScoreRows, scores: &mut Scores) {
                for query in (0..LANES).step_by(WORDS) {
                    for first in (0..CHUNK).step_by(WORDS) {
                        let mut columns = [zero(); WORDS];
                        for (n, column) in columns.iter_mut().enumerate() {
                            // SAFETY: one vector of words within a row of 64.
                            *column = unsafe { load(rows[query + n][first..].as_ptr().cast()) };
                        }
                        for (row, to) in transpose_square(columns).into_iter().zip(&mut scores[first..]) {
                            // SAFETY: one vector of words within a row of 16.
                            unsafe { store(to[query..].as_mut_ptr().cast(), row) };
                        }
                    }
                }
            }
        }
    };
}

// The cache level that the next positions' keys are prefetched into: measured, see docs/kernels.md.
kernels!(v512, "avx512f,avx512bw,avx512vl,avx512dq", into: L1);
kernels!(v256, "avx2,fma,f16c", into: L2);
