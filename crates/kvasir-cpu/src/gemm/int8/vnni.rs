//! Integer GEMM with vector dot products (AVX-512 VNNI, AVX-VNNI, AVX2): panel pairs times blocks
//! of rows.
//!
//! 1. A panel's superblock is unpacked once per block of rows into L1 (`UnpackedSuperblock`), double-buffered:
//!    superblock `n + 1` is unpacked, and `n + 2` prefetched, between the dot products of the first
//!    rows with superblock `n`.
//! 2. As many rows are multiplied at once as there are registers for their sums; each product
//!    broadcasts four codes.
//! 3. `Work::add` scales the exact integer sums and adds them to the f32 sums.
//!
//! Unsigned x signed dot products (`vpdpbusd`): weights that may be negative are stored with 128
//! added, and the negated sums of activations take the excess out. AVX2 has no such product, and
//! pairs of offset products would overflow `vpmaddubsw`; there weights stay signed, and `|w| *
//! sign(x, w)` is multiplied.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::panel_pair::{BLOCK, Pair, PairScratch, UnpackedSuperblock};
use crate::gemm::int8::quantize::Sums;
use crate::gemm::int8::unpack::PARTS;
use crate::gemm::output::{Destination, OutputsFrom};
use crate::isa::tile::{LANES, TILE};
use crate::kernels::{Int8Gemm, kv_prefetch_fits};
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::prefetch::kv_prefetch::{KvPrefetchQueue, Page};
use crate::weights::int8::layouts::Layout;
use std::ops::Range;

/// Cache lines per part.
const LINES: usize = 8;

macro_rules! kernels {
    ($vectors:ident, $unpack:ident, $features:literal, $first:literal rows and then $next:literal, as $kernel:ident) => {
        pub(crate) mod $vectors {
            use super::*;
            use crate::gemm::int8::unpack::$unpack::*;
            use crate::gemm::int8::vectors::$vectors::*;

            /// Rows per register block: the first block of a tile, and the ones after it.
            const FIRST: usize = $first;
            const NEXT: usize = $next;
            /// Whether the KV cache of the next layer is prefetched alongside.
            const KV_PREFETCH: bool = Int8Gemm::$kernel.prefetches_kv();

            /// Whether weights are multiplied straight from the panel: they are stored as dot
            /// products need them.
            const fn in_place<L: Layout>() -> bool {
                L::FORMAT.stores_unpacked() && zero_point::<L>() == 128
            }

            /// Rows of the next register block, from row `first` of a tile with `left` rows left.
            fn at_once(first: usize, left: usize) -> usize {
                if first == 0 && left > NEXT { FIRST } else { NEXT }
            }

            /// A superblock that is unpacked part by part between the products of another one: dot
            /// products leave half of the vector ports idle.
            struct Unpacking<'o> {
                block: *const u8,
                /// The superblock after it, which is prefetched.
                next: *const u8,
                to: &'o mut UnpackedSuperblock,
                /// Page of the next layer's KV cache that is prefetched alongside.
                page: Page,
            }

            impl Unpacking<'_> {
                /// Prefetches beside line `line` of part `i`. Spread out, because a core tracks
                /// some 50 outstanding lines and drops further prefetches.
                #[inline(always)]
                fn prefetch<L: Layout>(&self, i: usize, line: usize) {
                    // A constant number of lines per part, so that the choice is resolved when the
                    // loop is unrolled.
                    let each = const { L::FORMAT.bytes().div_ceil(64 * PARTS) };
                    (i * each + line..(i + 1) * each)
                        .step_by(LINES)
                        .for_each(|line| prefetch_line(CacheLevel::L2, self.next.wrapping_add(line * 64)));
                    if KV_PREFETCH {
                        self.page.prefetch(i * LINES + line, PARTS * LINES);
                    }
                }

                /// Unpacks part `i` of [`PARTS`].
                ///
                /// # Safety
                /// `block` must be a superblock of the layout.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn part<L: Layout>(&mut self, i: usize) {
                    if in_place::<L>() {
                        return;
                    }
                    for half in 0..HALVES {
                        // SAFETY: the caller's superblock; half a line is writable.
                        unsafe {
                            lines::<L>(self.block, half, i, zero_point::<L>(), |line, bytes| {
                                store(self.to.weights[line].as_mut_ptr().add(half * 32), bytes);
                            });
                        }
                    }
                }

                /// Unpacks what belongs to the whole superblock: d, dmin and mins.
                ///
                /// # Safety
                /// As for [`part`](Self::part).
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn end<L: Layout>(self) {
                    let Self { block, to, .. } = self;
                    let f = L::FORMAT;
                    for half in 0..HALVES {
                        let at = half * LANES / HALVES;
                        // SAFETY: sub-blocks and head of the layout; a vector's numbers are
                        // writable.
                        unsafe {
                            store_floats(to.d.as_mut_ptr().add(at), units::<L>(block, half));
                            if f.has_min {
                                for two in 0..f.subs() / 2 {
                                    let mins = mins::<L>(block, half, two);
                                    store(to.mins[two].as_mut_ptr().add(at).cast(), mins);
                                }
                                let dmin = float_scales::<L>(block.add(32 + half * 16));
                                store_floats(to.dmin.as_mut_ptr().add(at), dmin);
                            }
                        }
                    }
                }

                /// Unpacks the whole superblock without overlap.
                ///
                /// # Safety
                /// As for [`part`](Self::part).
                #[target_feature(enable = $features)]
                unsafe fn all<L: Layout>(mut self) {
                    // SAFETY: the caller's superblock.
                    unsafe {
                        for i in 0..PARTS {
                            (0..LINES).for_each(|line| self.prefetch::<L>(i, line));
                            self.part::<L>(i);
                        }
                        self.end::<L>();
                    }
                }
            }

            /// Exact sums of `R` rows of activations times a superblock's weights. Unpacks another
            /// superblock alongside.
            ///
            /// # Safety
            /// `codes` must have `R` rows of a tile, and `weights` 64 lines.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn superblock<L: Layout, const R: usize>(
                weights: *const u8,
                codes: *const i32,
                sums: &[Sums; R],
                mut unpacking: Option<Unpacking<'_>>,
            ) -> [[Ints; R]; HALVES] {
                let mut totals = [[zero(); R]; HALVES];
                for n in 0..R {
                    let total = unlifted::<L>(&sums[n]);
                    totals.iter_mut().for_each(|totals| totals[n] = total);
                }
                // Without a fused dot product, the compiler must not know the trip count: it would
                // unroll the loop, add products before they meet their sums, and spill registers.
                let lines = if ZERO_POINT == 0 { std::hint::black_box(LINES) } else { LINES };
                // SAFETY: all offsets lie within the superblock and the caller's rows.
                unsafe {
                    for part in 0..PARTS {
                        if let Some(unpacking) = &mut unpacking {
                            unpacking.part::<L>(part);
                        }
                        let (weights, codes) =
                            (weights.add(part * LINES * 64), codes.add(part / 2 * 256 + part % 2 * LINES));
                        for line in 0..lines {
                            if let Some(unpacking) = &unpacking {
                                unpacking.prefetch::<L>(part, line);
                            }
                            let mut w = [zero(); HALVES];
                            for (half, w) in w.iter_mut().enumerate() {
                                *w = load(weights.add(line * 64 + half * 32));
                            }
                            for n in 0..R {
                                let x = splat32(*codes.add(line + n * 16));
                                for half in 0..HALVES {
                                    totals[half][n] = add::<L>(totals[half][n], w[half], x);
                                }
                            }
                        }
                    }
                    if let Some(unpacking) = unpacking {
                        unpacking.end::<L>();
                    }
                }
                totals
            }

            /// `panel_pair::panels` with vector dot products: a pair of panels times a block of at
            /// most [`BLOCK`] rows.
            ///
            /// # Safety
            /// The CPU must support the target features, the panels must have layout `L`, and the
            /// rows must exist.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn panels<L: Layout, const P: usize>(
                pair: &Pair<P>,
                x: &QuantActivations,
                rows: Range<usize>,
                scratch: &mut PairScratch,
                kv_queue: &mut KvPrefetchQueue,
                out: Option<OutputsFrom<'_>>,
            ) {
                debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK);
                let f = L::FORMAT;
                let blocks = x.superblocks * f.planes;
                let at = |p: usize, block: usize| pair.at(p, block, blocks, f.bytes());
                let PairScratch { vectors: [first, second], sums, in_second, unpacked_ahead, .. } = scratch;
                let near = Page::of(first.as_ptr().cast());
                // With few rows, weights that are stored unpacked leave no memory bandwidth to
                // spare.
                let prefetches_kv =
                    KV_PREFETCH && kv_prefetch_fits(rows.len()) && (rows.len() > NEXT || !in_place::<L>());
                let mut page = || if prefetches_kv { kv_queue.next() } else { None }.unwrap_or(near);
                let (mut now, mut then) = if *in_second { (second, first) } else { (first, second) };
                if !pair.take_unpacked(unpacked_ahead) {
                    for p in 0..P {
                        let unpacking =
                            Unpacking { block: at(p, 0), next: at(p, 1), to: &mut now[p], page: near };
                        // SAFETY: a superblock of the panel.
                        unsafe { unpacking.all::<L>() };
                    }
                }
                *in_second ^= blocks % 2 == 1;
                // Rows whose sums are already in the output.
                let mut done = 0;
                for block in 0..blocks {
                    let last = block + 1 == blocks;
                    let mut first = 0;
                    while first < rows.len() {
                        let (tile, row) = ((rows.start + first) / TILE, first % TILE);
                        let n = at_once(row, rows.len() - first);
                        let to = out.filter(|_| last && first + n <= rows.len());
                        for p in 0..P {
                            let weights = if in_place::<L>() {
                                at(p, block).wrapping_add(f.codes_at())
                            } else {
                                now[p].weights.as_ptr().cast()
                            };
                            let (unpacked, superblock, is_first) = (&now[p], block / f.planes, block == 0);
                            let work = Work { unpacked, weights, tile, row, superblock, is_first };
                            let sums = &mut sums[p][first..];
                            let to =
                                to.map(|to| to.out.destination(rows.start + first, to.first + p * LANES));
                            // The first row block unpacks the next superblock.
                            let next = (first == 0 && (!last || pair.next.is_some())).then(|| Unpacking {
                                block: at(p, block + 1),
                                next: at(p, block + 2),
                                to: &mut then[p],
                                page: page(),
                            });
                            // SAFETY: activations are whole tiles; `sums` covers a block, and `to`
                            // is set only if all its rows exist.
                            unsafe {
                                match next {
                                    Some(next) if n == FIRST => work.add::<L, FIRST>(x, sums, to, Some(next)),
                                    Some(next) => work.add::<L, NEXT>(x, sums, to, Some(next)),
                                    None if n == FIRST => work.add::<L, FIRST>(x, sums, to, None),
                                    None => work.add::<L, NEXT>(x, sums, to, None),
                                }
                            }
                        }
                        first += n;
                        done = if to.is_some() { first } else { done };
                    }
                    std::mem::swap(&mut now, &mut then);
                }
                pair.record_unpacked(unpacked_ahead);
                let Some(OutputsFrom { out, first }) = out else { return };
                for r in done..rows.len() {
                    // SAFETY: the caller's outputs.
                    (0..P).for_each(|p| unsafe { out.store(rows.start + r, first + p * LANES, &sums[p][r]) });
                }
            }

            /// One register block: rows of a tile x one superblock of a panel.
            struct Work<'w> {
                unpacked: &'w UnpackedSuperblock,
                weights: *const u8,
                /// The tile of activations, and the first of its rows.
                tile: usize,
                row: usize,
                superblock: usize,
                /// Whether it begins the sums.
                is_first: bool,
            }

            impl Work<'_> {
                /// Adds the products of `R` rows to their `sums`, or stores the final result at
                /// `to`.
                ///
                /// # Safety
                /// As for [`panels`]; `R` rows, sums and destination rows must exist.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn add<L: Layout, const R: usize>(
                    &self,
                    x: &QuantActivations,
                    sums: &mut [[f32; LANES]],
                    to: Option<Destination>,
                    next: Option<Unpacking<'_>>,
                ) {
                    let f = L::FORMAT;
                    let Self { unpacked, weights, tile, row: r, superblock: s, is_first } = *self;
                    let before = sums.as_mut_ptr().cast::<f32>();
                    let to = to.unwrap_or(Destination { at: before, step: LANES, lanes: u16::MAX });
                    // SAFETY: upheld by the caller.
                    unsafe {
                        let codes = x.codes(tile, s).add(r * 64).cast();
                        let of_rows = &*x.sums(tile, s).add(r).cast::<[Sums; R]>();
                        let totals = superblock::<L, R>(weights, codes, of_rows, next);
                        for half in 0..HALVES {
                            let at = half * LANES / HALVES;
                            let d = load_floats(unpacked.d.as_ptr().add(at));
                            let dmin = load_floats(unpacked.dmin.as_ptr().add(at));
                            for n in 0..R {
                                let mut t = times(floats(totals[half][n]), d);
                                if f.has_min {
                                    let mut mins = zero();
                                    for two in 0..f.subs() / 2 {
                                        let min = load(unpacked.mins[two].as_ptr().add(at).cast());
                                        mins = add_pairs(mins, min, splat32(of_rows[n].pair(f, two)));
                                    }
                                    t = fnma(floats(mins), dmin, t);
                                }
                                let before = if is_first {
                                    zero_floats()
                                } else {
                                    load_floats(before.add(n * LANES + at))
                                };
                                let sum = fma(t, splat_floats(*x.scales(tile, s).add(r + n)), before);
                                store_some(to.at.wrapping_add(n * to.step + at), to.lanes >> at, sum);
                            }
                        }
                    }
                }
            }
        }
    };
}

kernels!(v512, v512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni", 16 rows and then 8, as Avx512Vnni);
kernels!(v512_bf16, v512_bf16, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni", 16 rows and then 8, as Avx512Bf16);
kernels!(v256_dots, v256, "avx2,fma,f16c,avxvnni", 6 rows and then 5, as AvxVnni);
kernels!(v256, v256, "avx2,fma,f16c", 4 rows and then 4, as Avx2);
