//! Integer GEMV for decode: weights are unpacked in registers and multiplied by up to four rows at
//! once.
//!
//! Three inner loops, by format:
//!
//! - `lanes` (4- and 5-bit codes): table lookup (`pshufb`) of code x scale, a vector holds inputs
//!   of a few outputs; words are summed across lanes at the end.
//! - `fours` (8-bit, stored unpacked): byte dot products of four inputs x 16 outputs.
//! - `pairs` (6-bit): 16-bit weights and `vpdpwssd` or `vpmaddwd`.
//!
//! GEMV is bound by memory bandwidth. The software prefetch distance is tuned at run time by
//! `prefetch/tuner.rs`, one tuner per (row count, mins, code bits, panel length). One source is
//! compiled for AVX-512 VNNI, AVX-VNNI and AVX2.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::quantize::{FEW, Sums, Words};
use crate::gemm::int8::unpack::{OutputLine, PARTS};
use crate::isa::tile::TILE;
use crate::prefetch::tuner::{PrefetchDistance, PrefetchTuner};
use crate::weights::int8::format::Format;
use crate::weights::int8::layouts::Layout;

/// Prefetch tuners by row count, whether there are mins, bits of a code, and panel length: these
/// change the time spent per cache line. For 6-bit codes, and 4-bit codes with mins, the best
/// distance also depends on the panel length.
static TUNERS: [[[[PrefetchTuner; LENGTH_CLASSES]; 9]; 2]; 3] =
    [const { [const { [const { [const { PrefetchTuner::new() }; LENGTH_CLASSES] }; 9] }; 2] }; 3];

/// Classes of panel length by the logarithm of superblocks: up to 256 inputs, below 1,024, below
/// 2,048, and so on.
const LENGTH_CLASSES: usize = 8;

/// The prefetch tuner for panels of `superblocks` superblocks and `rows` rows (classes: one, two or
/// three, more).
pub(crate) fn tuner(format: Format, superblocks: usize, rows: usize) -> &'static PrefetchTuner {
    let rows = rows.max(1).ilog2().min(2) as usize;
    let length = (superblocks.max(1).ilog2() as usize).min(LENGTH_CLASSES - 1);
    &TUNERS[rows][usize::from(format.has_min)][format.bits][length]
}

macro_rules! kernels {
    ($vectors:ident, $unpack:ident, $features:literal) => {
        pub(crate) mod $vectors {
            use super::*;
            use crate::gemm::int8::unpack::$unpack::*;
            use crate::gemm::int8::vectors::$vectors::*;

            /// GEMV kernel: one panel times rows `row .. row + N`, which must lie in one tile.
            ///
            /// # Safety
            /// The CPU must support the target features, `panel` must hold superblocks of layout
            /// `L`, and the rows must exist.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn dot<L: Layout, const N: usize>(
                panel: *const u8,
                x: &QuantActivations,
                row: usize,
                out: &mut [[f32; 16]; N],
            ) {
                let f = L::FORMAT;
                let (tile, r) = (row / TILE, row % TILE);
                assert!(row + N <= FEW || f.bits != 6, "rows are few");
                let mut sums = [[zero_floats(); N]; HALVES];
                let ahead = tuner(f, x.superblocks, N).distance();
                for at in 0..x.superblocks * f.planes {
                    let s = at / f.planes;
                    // SAFETY: superblock `at` of the panel, superblock `s` of rows `r .. r + N` of
                    // the tile.
                    unsafe {
                        let block = panel.add(at * f.bytes());
                        let codes = x.codes(tile, s).add(r * 64);
                        let all = &*x.sums(tile, s).add(r).cast::<[Sums; N]>();
                        for (half, sums) in sums.iter_mut().enumerate() {
                            // Mins are stored before codes: this keeps memory access sequential.
                            let mins =
                                if f.has_min { of_mins::<L, N>(block, half, all) } else { [zero(); N] };
                            let totals = if f.by_output() {
                                lanes::<L, N>(block, half, ahead, codes, all)
                            } else if f.stores_unpacked() {
                                fours::<L, N>(block, half, ahead, codes, all)
                            } else {
                                pairs::<L, N>(block, half, ahead, &*x.words(row, s).cast())
                            };
                            for (n, sum) in sums.iter_mut().enumerate() {
                                let mut t = times(floats(totals[n]), units::<L>(block, half));
                                if f.has_min {
                                    let dmin = float_scales::<L>(block.add(32 + half * 16));
                                    t = fnma(floats(mins[n]), dmin, t);
                                }
                                *sum = fma(t, splat_floats(*x.scales(tile, s).add(r + n)), *sum);
                            }
                        }
                    }
                }
                for (half, sums) in sums.into_iter().enumerate() {
                    for (out, sum) in out.iter_mut().zip(sums) {
                        // SAFETY: the outputs of a half.
                        unsafe { store_floats(out.as_mut_ptr().add(half * 8), sum) };
                    }
                }
            }

            /// Exact sums of a superblock's weights times activations, for 6-bit codes unpacked to
            /// 16 bits.
            ///
            /// # Safety
            /// `block` must point at a superblock of layout `L`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn pairs<L: Layout, const N: usize>(
                block: *const u8,
                half: usize,
                ahead: PrefetchDistance,
                words: &[Words; N],
            ) -> [Ints; N] {
                let mut totals = [[zero(); N]; CHAINS];
                for i in 0..16 {
                    prefetch::<L, 16>(block, half, i, ahead);
                    // SAFETY: the caller's superblock.
                    let weights = unsafe { unpack_16bit::<L>(block, half, i) };
                    for (j, line) in weights.into_iter().enumerate() {
                        for (odd, w) in line.into_iter().enumerate() {
                            for (n, words) in words.iter().enumerate() {
                                let total = &mut totals[(j * 2 + odd) % chains(N)][n];
                                let [low, high] = words[odd][i * 4 + j].map(|word| word as u16 as i32);
                                *total = add_pairs(*total, w, splat32(low | high << 16));
                            }
                        }
                    }
                }
                add_up(&totals)
            }

            /// Exact sums for codes stored by output: each lane holds inputs of one output, and its
            /// words are added at the end.
            ///
            /// # Safety
            /// As for [`pairs`]; `codes` must be those of `N` rows of a tile.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn lanes<L: Layout, const N: usize>(
                block: *const u8,
                half: usize,
                ahead: PrefetchDistance,
                codes: *const i8,
                sums: &[Sums; N],
            ) -> [Ints; N] {
                let zero_point = zero_point::<L>();
                let mut words = [[zero(); 4]; N];
                for part in 0..PARTS {
                    prefetch::<L, PARTS>(block, half, part, ahead);
                    // SAFETY: the caller's superblock and rows.
                    unsafe {
                        let x = codes.add(part / 2 * 1024 + part % 2 * 32);
                        for n in 0..4 {
                            let line = OutputLine { half, part, n };
                            let tables = tables::<L>(block, line, zero_point);
                            for (i, tables) in tables.into_iter().enumerate() {
                                let w = of_tables::<L>(block, line, i > 0, tables);
                                for (row, words) in words.iter_mut().enumerate() {
                                    let x = broadcast_lane(x.add(row * 64 + i * 16).cast());
                                    words[n] = add::<L>(words[n], w, x);
                                }
                            }
                        }
                    }
                }
                let mut totals = [zero(); N];
                for ((total, words), sums) in totals.iter_mut().zip(words).zip(sums) {
                    *total = add32(unlifted::<L>(sums), sums_in_lanes(words));
                }
                totals
            }

            /// Exact sums for weights that are stored unpacked. The negated sums of activations
            /// take out the zero point.
            ///
            /// # Safety
            /// As for [`lanes`].
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn fours<L: Layout, const N: usize>(
                block: *const u8,
                half: usize,
                ahead: PrefetchDistance,
                codes: *const i8,
                sums: &[Sums; N],
            ) -> [Ints; N] {
                let mut totals = [[zero(); N]; CHAINS];
                for (total, sums) in totals[0].iter_mut().zip(sums) {
                    *total = unlifted::<L>(sums);
                }
                for i in 0..16 {
                    prefetch::<L, 16>(block, half, i, ahead);
                    for j in 0..4 {
                        // SAFETY: line `4 i + j` of the superblock; the caller's rows.
                        unsafe {
                            let w = stored::<L>(block, half, i * 4 + j, zero_point::<L>());
                            let x = codes.add(i / 4 * 1024 + i % 4 * 16 + j * 4).cast::<i32>();
                            for n in 0..N {
                                let total = &mut totals[j % chains(N)][n];
                                *total = add::<L>(*total, w, splat32(*x.add(n * 16)));
                            }
                        }
                    }
                }
                add_up(&totals)
            }

            /// Number of independent accumulators per row, which hide the latency of the dot
            /// product.
            const fn chains(rows: usize) -> usize {
                if rows < CHAINS { CHAINS / rows } else { 1 }
            }

            /// Adds up the independent accumulators.
            #[inline]
            #[target_feature(enable = $features)]
            fn add_up<const N: usize>(totals: &[[Ints; N]; CHAINS]) -> [Ints; N] {
                let mut all = totals[0];
                for more in &totals[1..chains(N)] {
                    all.iter_mut().zip(more).for_each(|(a, b)| *a = add32(*a, *b));
                }
                all
            }

            /// Prefetches ahead of part `i` of `OF`. Every part prefetches the same number of
            /// lines, so the loop has no branches; the excess belongs to the next superblock, as
            /// does a partial last line.
            #[inline]
            fn prefetch<L: Layout, const OF: usize>(
                block: *const u8,
                half: usize,
                i: usize,
                ahead: PrefetchDistance,
            ) {
                let lines = const { (L::FORMAT.bytes() / 64).div_ceil(OF) };
                if half == 0 {
                    ahead.prefetch(block.wrapping_add(i * lines * 64), lines);
                }
            }

            /// Exact sums of a superblock's mins times negated sums of activations.
            ///
            /// # Safety
            /// As for [`pairs`].
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn of_mins<L: Layout, const N: usize>(
                block: *const u8,
                half: usize,
                sums: &[Sums; N],
            ) -> [Ints; N] {
                let mut totals = [zero(); N];
                for two in 0..L::FORMAT.subs() / 2 {
                    // SAFETY: sub-blocks of the caller's superblock.
                    let mins = unsafe { mins::<L>(block, half, two) };
                    for (total, sums) in totals.iter_mut().zip(sums) {
                        *total = add_pairs(*total, mins, splat32(sums.pair(L::FORMAT, two)));
                    }
                }
                totals
            }
        }
    };
}

kernels!(v512, v512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
kernels!(v256, v256, "avx2,fma,f16c");
kernels!(v256_dots, v256, "avx2,fma,f16c,avxvnni");
