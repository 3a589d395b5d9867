//! GEMM and GEMV in f32 arithmetic: `out[row] = W x[row]`, weights dequantized to f32 inside the
//! loop.
//!
//! Weights stay in their stored width (`Width`). Per block of `ROWS` activation rows the kernel
//! walks the K dimension in parts of `PART` inputs, dequantizes the part of up to `PANELS` panels,
//! and accumulates all rows. Every output is one chain of fused multiply-adds in input order,
//! whatever the instruction set or batch, so results are batch-invariant. Guarded by
//! `gemm/tests.rs`.

use crate::gemm::f32::fma::{StridedRows, add_products};
use crate::gemm::output::Output;
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::threads::pool::ThreadPool;
use crate::weights::f32::panels::{F32Layout, F32Panels};
use crate::weights::f32::{Dequantized, PART};
use crate::weights::panels::PanelScratch;

/// Panels per work item: independent FMA chains that hide the latency of a single row.
const PANELS: usize = 4;
/// Activation rows per dequantized part.
const ROWS: usize = 32;
/// Row count from which one panel has enough independent chains.
const TOGETHER: usize = 4;
/// Software prefetch distance in bytes, from the part that is being dequantized.
const AHEAD: usize = 2048;

/// Rows of activations, `stride` numbers apart.
#[derive(Clone, Copy)]
pub(crate) struct ActivationRows<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
}

/// # Safety
/// As for [`f32_panels`].
#[inline(always)]
unsafe fn f32_panels_body(
    kind: F32Layout,
    panels: &[&[u8]],
    ActivationRows { values: x, stride }: ActivationRows<'_>,
    first: usize,
    own_isa: Isa,
    out: &Output<'_>,
) {
    let (F32Layout { inputs: all, width }, rows) = (kind, out.rows());
    let mut dequantized: [Dequantized; PANELS] = [[[0.0; LANES]; PART]; PANELS];
    for from in (0..rows).step_by(ROWS) {
        let rows = ROWS.min(rows - from);
        let mut sums = [[[0f32; LANES]; ROWS]; PANELS];
        for (part, at) in (0..all).step_by(PART).enumerate() {
            let bytes = width.bytes();
            for (panel, dequantized) in panels.iter().zip(&mut dequantized) {
                let part = &panel[part * bytes..][..bytes];
                for line in (0..bytes).step_by(64) {
                    prefetch_line(CacheLevel::L2, part.as_ptr().wrapping_add(AHEAD + line));
                }
                width.dequantize(own_isa, part, dequantized);
            }
            let inputs = PART.min(all - at);
            let row = |n: usize| &x[(from + n) * stride + at..][..inputs];
            // Remaining rows run across all panels at once, to hide the FMA latency.
            let mut n = rows / TOGETHER * TOGETHER;
            if n > 0 {
                let all = &x[from * stride + at..][..(n - 1) * stride + inputs];
                let x = StridedRows { first: all.as_ptr(), row: stride, number: 1 };
                for (dequantized, sums) in dequantized[..panels.len()].iter().zip(&mut sums) {
                    // SAFETY: `n` rows of `inputs` numbers each lie within `all`.
                    unsafe { add_products(own_isa, x, &dequantized[..inputs], &mut sums[..n]) };
                }
            }
            while n < rows {
                add_row(&dequantized, row(n), n, &mut sums);
                n += 1;
            }
        }
        for (panel, sums) in sums[..panels.len()].iter().enumerate() {
            for (n, sums) in sums[..rows].iter().enumerate() {
                // SAFETY: the caller's outputs.
                unsafe { out.store(from + n, (first + panel) * LANES, sums) };
            }
        }
    }
}

/// Accumulates one part of all panels for one row.
#[inline(always)]
fn add_row(w: &[Dequantized; PANELS], x: &[f32], row: usize, sums: &mut [[[f32; LANES]; ROWS]; PANELS]) {
    let mut all: [[f32; LANES]; PANELS] = std::array::from_fn(|panel| sums[panel][row]);
    for (i, &v) in x.iter().enumerate().take(PART) {
        for panel in 0..PANELS {
            for lane in 0..LANES {
                all[panel][lane] = w[panel][i][lane].mul_add(v, all[panel][lane]);
            }
        }
    }
    (0..PANELS).for_each(|panel| sums[panel][row] = all[panel]);
}

per_isa! {
    /// `out[row] = panels x[row]` for all rows, at most [`PANELS`] panels, starting with panel
    /// `first` of the matrix.
    ///
    /// # Safety
    /// No other thread may write the outputs of these panels concurrently.
    unsafe f32_panels(kind: F32Layout, panels: &[&[u8]], x: ActivationRows<'_>, first: usize, own_isa: Isa, out: &Output<'_>) => f32_panels_body
}

/// `out[row] = w x[row]`.
pub(crate) fn matmul_f32(
    threads: &ThreadPool,
    isa: Isa,
    w: &F32Panels,
    x: ActivationRows<'_>,
    out: &mut Output<'_>,
) {
    let (out, all) = (&*out, w.panels());
    w.read(threads, |reader| {
        threads.each_in_order(all.div_ceil(PANELS), &|_, n| {
            let (first, mut unused) = (n * PANELS, <[PanelScratch; PANELS]>::default());
            let mut panels: [&[u8]; PANELS] = [&[]; PANELS];
            let there = first..all.min(first + PANELS);
            for ((panel, scratch), n) in panels.iter_mut().zip(&mut unused).zip(there.clone()) {
                *panel = reader.panel(n, scratch);
            }
            // SAFETY: the outputs are exclusive to this work item.
            unsafe { f32_panels(isa, w.kind, &panels[..there.len()], x, first, isa, out) };
        });
    });
}
