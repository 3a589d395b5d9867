//! Integer GEMV for decode: one panel times a few rows. Weights are unpacked in registers.
//!
//! GEMV is bound by memory bandwidth. The software prefetch distance is tuned at run time by
//! `prefetch/tuner.rs`, one tuner per class of row count, presence of mins, bits of a code and class
//! of panel length. One source is compiled for all instruction sets.

use crate::gemm::output::Output;
use crate::gemm::quant::activations::QuantActivations;
use crate::isa::tile::{LANES, TILE};
use crate::kernels::{MAX_GEMV_ROWS, QuantKernel};
use crate::prefetch::tuner::PrefetchTuner;
use crate::weights::quant::format::{BLOCKS_PER_SUPERBLOCK, Format};
use crate::weights::quant::layouts::Layout;
use crate::weights::quant::unpack::BlockPtr;

/// Prefetch tuners by row count, whether there are mins, bits of a code, and panel length: these
/// change the time spent per cache line.
static TUNERS: [[[[PrefetchTuner; LENGTH_CLASSES]; 9]; 2]; 3] =
    [const { [const { [const { [const { PrefetchTuner::new() }; LENGTH_CLASSES] }; 9] }; 2] }; 3];

/// Classes of panel length by the logarithm of superblocks: below 512 inputs, below 1,024, below
/// 2,048, and so on.
const LENGTH_CLASSES: usize = 8;

/// The prefetch tuner for panels of `blocks` blocks and `rows` rows (classes: one, two or three,
/// more).
pub(crate) fn tuner(format: Format, blocks: usize, rows: usize) -> &'static PrefetchTuner {
    let rows = rows.max(1).ilog2().min(2) as usize;
    let length = ((blocks / BLOCKS_PER_SUPERBLOCK).max(1).ilog2() as usize).min(LENGTH_CLASSES - 1);
    &TUNERS[rows][usize::from(format.has_min)][format.bits()][length]
}

/// One packed panel and the index of its first output.
pub(crate) struct Panel<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) first: usize,
}

/// One panel times all rows, some at a time.
///
/// # Safety
/// The machine must have the kernel's instructions, the panel must have layout `L`, the rows must
/// exist, and no other thread may write the panel's outputs concurrently.
pub(crate) unsafe fn gemv<L: Layout>(
    kernel: QuantKernel,
    w: &Panel<'_>,
    x: &QuantActivations,
    out: &Output<'_>,
) {
    let (mut row, rows) = (0, out.rows());
    while row < rows {
        // Rows of one tile are contiguous.
        let n = (rows - row).min(MAX_GEMV_ROWS).min(TILE - row % TILE);
        let mut sums = [[0.0; LANES]; MAX_GEMV_ROWS];
        macro_rules! rows {
            ($module:ident) => {
                match n {
                    1 => $module::dot::<L, 1>(w.bytes.as_ptr(), x, row, &mut sums),
                    2 => $module::dot::<L, 2>(w.bytes.as_ptr(), x, row, &mut sums),
                    3 => $module::dot::<L, 3>(w.bytes.as_ptr(), x, row, &mut sums),
                    _ => $module::dot::<L, 4>(w.bytes.as_ptr(), x, row, &mut sums),
                }
            };
        }
        // SAFETY: upheld by the caller.
        unsafe {
            match kernel {
                QuantKernel::Portable => rows!(portable),
                #[cfg(target_arch = "x86_64")]
                QuantKernel::Avx2 => rows!(v256),
                #[cfg(target_arch = "x86_64")]
                QuantKernel::AvxVnni => rows!(v256_vnni),
                #[cfg(target_arch = "x86_64")]
                QuantKernel::Avx512Vnni => rows!(v512),
            }
            sums[..n].iter().enumerate().for_each(|(i, sums)| out.store(row + i, w.first, sums));
        }
        row += n;
    }
}

macro_rules! kernels {
    ($vectors:ident, $unpack:ident, $features:meta) => {
        mod $vectors {
            use super::*;
            use crate::isa::int_vectors::$vectors::*;
            use crate::weights::quant::unpack::$unpack::{line, mins, scales};

            /// Number of independent accumulators per row, which hide the latency of `dot_pairs`.
            const fn chains(rows: usize) -> usize {
                if rows < CHAINS { CHAINS / rows } else { 1 }
            }

            /// One panel times rows `row .. row + N` of one tile.
            ///
            /// # Safety
            /// The CPU must support the target features, `panel` must hold blocks of layout `L`,
            /// and the rows must exist.
            #[$features]
            pub(crate) unsafe fn dot<L: Layout, const N: usize>(
                panel: *const u8,
                x: &QuantActivations,
                row: usize,
                out: &mut [[f32; LANES]; MAX_GEMV_ROWS],
            ) {
                let f = L::FORMAT;
                let distance = tuner(f, x.blocks, N).distance();
                let mut sums = [[zero_floats(); N]; VECTORS];
                for block in 0..x.blocks {
                    let w = BlockPtr::of::<L>(panel, block);
                    distance.prefetch(w.at, const { L::FORMAT.block_bytes().div_ceil(64) });
                    let (codes, x_scales) = (x.codes(row, block), x.scales(row, block));
                    for (half, sums) in sums.iter_mut().enumerate() {
                        for sub in 0..f.subs() {
                            // SAFETY: a block of the panel, and of the caller's rows.
                            unsafe {
                                let mut totals = [[zero(); N]; CHAINS];
                                for (n, total) in totals[0].iter_mut().enumerate() {
                                    if f.zero_point != 0 {
                                        *total =
                                            splat32((*x_scales.add(n)).negated_sum(f, sub) * f.zero_point);
                                    }
                                }
                                for i in sub * f.sub / 4..(sub + 1) * f.sub / 4 {
                                    let pairs = line::<L>(w.at, half, i);
                                    for n in 0..N {
                                        for (odd, pairs) in pairs.into_iter().enumerate() {
                                            let total = &mut totals[(i * 2 + odd) % chains(N)][n];
                                            let x = splat32((*codes.add(n))[i * 2 + odd]);
                                            *total = dot_pairs(*total, pairs, x);
                                        }
                                    }
                                }
                                let scale = scales::<L>(w, half, sub);
                                for (n, sum) in sums.iter_mut().enumerate() {
                                    let mut total = totals[0][n];
                                    for chain in &totals[1..chains(N)] {
                                        total = add32(total, chain[n]);
                                    }
                                    let scale = mul(scale, splat_floats((*x_scales.add(n)).scale));
                                    *sum = fma(to_f32(total), scale, *sum);
                                }
                                if f.has_min {
                                    let min = mins::<L>(w, half, sub);
                                    for (n, sum) in sums.iter_mut().enumerate() {
                                        *sum = fma(min, splat_floats((*x_scales.add(n)).sum(f, sub)), *sum);
                                    }
                                }
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
        }
    };
}

kernels!(portable, portable, allow(unused_mut));
#[cfg(target_arch = "x86_64")]
kernels!(v512, v512, target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
#[cfg(target_arch = "x86_64")]
kernels!(v256, v256, target_feature(enable = "avx2,fma,f16c"));
#[cfg(target_arch = "x86_64")]
kernels!(v256_vnni, v256, target_feature(enable = "avx2,fma,f16c,avxvnni"));
