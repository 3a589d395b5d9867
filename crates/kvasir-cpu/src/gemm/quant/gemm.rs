//! Integer GEMM: panels times blocks of rows.
//!
//! 1. A superblock of the panel is unpacked into L1 once per row block: weights as 16-bit pairs minus
//!    the zero point, scales and mins as f32.
//! 2. A register block multiplies up to `AT_ONCE` rows; each dot product broadcasts two activations.
//! 3. The exact integer sums of a sub-block are scaled and added to the row's f32 sums.
//!
//! Bits equal those of `gemv.rs`; `tests.rs` checks this.

use crate::gemm::output::{Output, token_blocks};
use crate::gemm::quant::activations::QuantActivations;
use crate::gemm::quant::quantize::Codes;
use crate::isa::tile::{LANES, TILE};
use crate::kernels::QuantKernel;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::weights::panels::PanelScratch;
use crate::weights::quant::format::{BLOCKS_PER_SUPERBLOCK, LINES};
use crate::weights::quant::layouts::Layout;
use crate::weights::quant::unpack::BlockPtr;
use std::ops::Range;

/// Rows per row block, which share one unpacked superblock.
pub(crate) const ROWS: usize = 512;

/// Rows per row block of a product of `rows` rows, so that their codes stay in L2.
pub(crate) fn rows_per_block(x: &QuantActivations, rows: usize) -> usize {
    token_blocks(rows, x.blocks * size_of::<Codes>()).min(ROWS)
}

/// Pairs of inputs per block.
const PAIRS: usize = LINES * 2;

/// One unpacked superblock of a panel.
#[repr(C, align(64))]
struct Unpacked {
    /// 16-bit weights, a pair of inputs of each output per line.
    pairs: [[[u32; LANES]; PAIRS]; BLOCKS_PER_SUPERBLOCK],
    /// `[block][sub-block][output]`; the second sub-block is unused where sub-blocks have 32 inputs.
    scales: [[[f32; LANES]; 2]; BLOCKS_PER_SUPERBLOCK],
    mins: [[[f32; LANES]; 2]; BLOCKS_PER_SUPERBLOCK],
}

/// Scratch of one worker for the integer GEMM.
#[repr(C, align(64))]
pub(crate) struct GemmScratch {
    unpacked: Unpacked,
    /// f32 sums of one row block.
    pub(crate) sums: [[f32; LANES]; ROWS],
    /// A panel packed on the fly.
    pub(crate) panel: PanelScratch,
}

impl Default for GemmScratch {
    fn default() -> Self {
        let zeros = [[[0.0; LANES]; 2]; BLOCKS_PER_SUPERBLOCK];
        Self {
            unpacked: Unpacked {
                pairs: [[[0; LANES]; PAIRS]; BLOCKS_PER_SUPERBLOCK],
                scales: zeros,
                mins: zeros,
            },
            sums: [[0.0; LANES]; ROWS],
            panel: PanelScratch::default(),
        }
    }
}

/// `scratch.sums = panel x rows` for a block of at most [`ROWS`] rows that begins with a tile. With a
/// queue, the KV cache of the next layer is prefetched alongside.
///
/// # Safety
/// The machine must have the kernel's instructions, `panel` must hold blocks of layout `L`, and the
/// rows must exist.
pub(crate) unsafe fn panel_times_rows<L: Layout>(
    kernel: QuantKernel,
    panel: *const u8,
    x: &QuantActivations,
    rows: Range<usize>,
    scratch: &mut GemmScratch,
    kv_queue: Option<&mut KvPrefetchQueue>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= ROWS);
    // SAFETY: upheld by the caller.
    unsafe {
        match kernel {
            QuantKernel::Portable => portable::panel::<L>(panel, x, rows, scratch, kv_queue),
            #[cfg(target_arch = "x86_64")]
            QuantKernel::Avx2 => v256::panel::<L>(panel, x, rows, scratch, kv_queue),
            #[cfg(target_arch = "x86_64")]
            QuantKernel::AvxVnni => v256_vnni::panel::<L>(panel, x, rows, scratch, kv_queue),
            #[cfg(target_arch = "x86_64")]
            QuantKernel::Avx512Vnni => v512::panel::<L>(panel, x, rows, scratch, kv_queue),
        }
    }
}

/// Stores the sums of a block of rows as outputs `first .. first + 16`.
///
/// # Safety
/// No other thread may write these outputs concurrently.
pub(crate) unsafe fn store_sums(scratch: &GemmScratch, rows: Range<usize>, first: usize, out: &Output<'_>) {
    for (row, sums) in rows.zip(&scratch.sums) {
        // SAFETY: the caller's outputs.
        unsafe { out.store(row, first, sums) };
    }
}

macro_rules! kernels {
    ($vectors:ident, $unpack:ident, $features:meta, $max_rows:literal rows) => {
        mod $vectors {
            use super::*;
            use crate::isa::int_vectors::$vectors::*;
            use crate::weights::quant::unpack::$unpack::{line, mins, scales};

            /// Rows per register block.
            const AT_ONCE: usize = $max_rows;

            /// [`panel_times_rows`] on this instruction set.
            ///
            /// # Safety
            /// See [`panel_times_rows`].
            #[$features]
            pub(crate) unsafe fn panel<L: Layout>(
                panel: *const u8,
                x: &QuantActivations,
                rows: Range<usize>,
                GemmScratch { unpacked, sums, .. }: &mut GemmScratch,
                mut kv_queue: Option<&mut KvPrefetchQueue>,
            ) {
                sums[..rows.len()].fill([0.0; LANES]);
                for first in (0..x.blocks).step_by(BLOCKS_PER_SUPERBLOCK) {
                    let blocks = first..x.blocks.min(first + BLOCKS_PER_SUPERBLOCK);
                    let page = kv_queue.as_mut().and_then(|queue| queue.next());
                    for (i, block) in blocks.clone().enumerate() {
                        if let Some(page) = page {
                            page.prefetch(i, BLOCKS_PER_SUPERBLOCK);
                        }
                        // SAFETY: a block of the caller's panel.
                        unsafe { unpack::<L>(BlockPtr::of::<L>(panel, block), i, unpacked) };
                    }
                    let (mut row, mut left) = (rows.start, &mut sums[..rows.len()]);
                    while !left.is_empty() {
                        // Rows of one tile are contiguous.
                        let n = left.len().min(TILE - row % TILE);
                        macro_rules! rows {
                            ($n:literal) => {{
                                let (now, rest) = left.split_at_mut($n);
                                // SAFETY: the rows exist.
                                unsafe { multiply::<L, $n>(unpacked, x, row, blocks.clone(), now) };
                                (row, left) = (row + $n, rest);
                            }};
                        }
                        match n {
                            16.. if AT_ONCE >= 16 => rows!(16),
                            8.. if AT_ONCE >= 8 => rows!(8),
                            4.. => rows!(4),
                            2.. => rows!(2),
                            _ => rows!(1),
                        }
                    }
                }
            }

            /// Unpacks a block as block `i` of the superblock.
            ///
            /// # Safety
            /// The block must be of layout `L`.
            #[inline]
            #[$features]
            unsafe fn unpack<L: Layout>(block: BlockPtr, i: usize, to: &mut Unpacked) {
                let f = L::FORMAT;
                let zero = splat16(f.zero_point as u16);
                // Prefetches the same block of the next superblock.
                for at in (0..f.block_bytes()).step_by(64) {
                    prefetch_line(CacheLevel::L2, block.at.wrapping_add(f.superblock_bytes() + at));
                }
                for half in 0..VECTORS {
                    let at = half * LANES / VECTORS;
                    // SAFETY: the caller's block; half a line is writable.
                    unsafe {
                        for sub in 0..f.subs() {
                            store_floats(
                                to.scales[i][sub].as_mut_ptr().add(at),
                                scales::<L>(block, half, sub),
                            );
                            if f.has_min {
                                store_floats(
                                    to.mins[i][sub].as_mut_ptr().add(at),
                                    mins::<L>(block, half, sub),
                                );
                            }
                        }
                        for n in 0..LINES {
                            for (odd, mut pairs) in line::<L>(block.at, half, n).into_iter().enumerate() {
                                if f.zero_point != 0 {
                                    pairs = sub16(pairs, zero);
                                }
                                store(to.pairs[i][n * 2 + odd].as_mut_ptr().add(at).cast(), pairs);
                            }
                        }
                    }
                }
            }

            /// Adds the products of rows `row .. row + R` of one tile with the unpacked blocks.
            ///
            /// # Safety
            /// The rows must exist, and have the blocks.
            #[inline]
            #[$features]
            unsafe fn multiply<L: Layout, const R: usize>(
                w: &Unpacked,
                x: &QuantActivations,
                row: usize,
                blocks: Range<usize>,
                sums: &mut [[f32; LANES]],
            ) {
                let f = L::FORMAT;
                let pairs_per_sub = PAIRS / f.subs();
                // Without a fused dot product, `black_box` hides the trip count: the compiler would
                // unroll the loop, add products to each other before the sums, and spill registers.
                let steps = if FUSED { pairs_per_sub } else { std::hint::black_box(pairs_per_sub) };
                for (i, block) in blocks.enumerate() {
                    let (codes, x_scales) = (x.codes(row, block).cast::<i32>(), x.scales(row, block));
                    for sub in 0..f.subs() {
                        let mut totals = [[zero(); R]; VECTORS];
                        for step in 0..steps {
                            let pair = sub * pairs_per_sub + step;
                            // SAFETY: pairs of the block; the caller's rows.
                            unsafe {
                                let weights = w.pairs[i].as_ptr().add(pair).cast::<u8>();
                                let mut pairs = [zero(); VECTORS];
                                for (half, pairs) in pairs.iter_mut().enumerate() {
                                    *pairs = load(weights.add(half * 32));
                                }
                                for n in 0..R {
                                    let x = splat32(*codes.add(n * PAIRS + pair));
                                    for half in 0..VECTORS {
                                        totals[half][n] = dot_pairs(totals[half][n], pairs[half], x);
                                    }
                                }
                            }
                        }
                        for half in 0..VECTORS {
                            let at = half * LANES / VECTORS;
                            // SAFETY: numbers of the sub-block; the caller's rows and sums.
                            unsafe {
                                let scale = load_floats(w.scales[i][sub].as_ptr().add(at));
                                for n in 0..R {
                                    let x_scale = &*x_scales.add(n);
                                    let to = sums[n].as_mut_ptr().add(at);
                                    let scale = mul(scale, splat_floats(x_scale.scale));
                                    let mut sum = fma(to_f32(totals[half][n]), scale, load_floats(to));
                                    if f.has_min {
                                        let min = load_floats(w.mins[i][sub].as_ptr().add(at));
                                        sum = fma(min, splat_floats(x_scale.sum(f, sub)), sum);
                                    }
                                    store_floats(to, sum);
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}

kernels!(portable, portable, allow(unused_mut), 4 rows);
#[cfg(target_arch = "x86_64")]
kernels!(v512, v512, target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"), 16 rows);
#[cfg(target_arch = "x86_64")]
kernels!(v256, v256, target_feature(enable = "avx2,fma,f16c"), 4 rows);
#[cfg(target_arch = "x86_64")]
kernels!(v256_vnni, v256, target_feature(enable = "avx2,fma,f16c,avxvnni"), 4 rows);
