//! bf16 GEMM and GEMV: partitioning into work items.
//!
//! Work items are disjoint sets of outputs (panels x row blocks). All kernels sum in the order of
//! `weights::bf16::Bf16Panels`, so results depend neither on the kernel nor on the batch.

use crate::gemm::bf16::activations::Bf16Activations;
#[cfg(target_arch = "x86_64")]
use crate::gemm::bf16::amx;
use crate::gemm::bf16::gemv::vector_panel;
use crate::gemm::bf16::vector_gemm;
use crate::gemm::output::{Output, token_blocks};
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, STEP, TILE};
use crate::kernels::Bf16Matmul;
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::weights::bf16::{Bf16Layout, Bf16Panels};
use crate::weights::panels::{PanelLayout, PanelReader, PanelScratch};

/// Target bytes of weights per work item when memory-bound.
const ITEM_BYTES: usize = 64 * 1024;

/// `out[row] = w x[row]`. The prologue `first` prepares `x`; the calling thread runs it before any
/// work item.
pub(crate) fn matmul_bf16(
    threads: &ThreadPool,
    isa: Isa,
    w: &Bf16Panels,
    x: &Bf16Activations,
    out: &mut Output<'_>,
    first: &Prologue<'_>,
) {
    assert!(x.takes(out.rows()) && x.steps == w.kind.steps << x.terms as u32, "rows and matrix fit");
    w.read(threads, |w| match Bf16Matmul::of(isa, out.rows()) {
        #[cfg(target_arch = "x86_64")]
        Bf16Matmul::Tiles => gemm_by_tiles(threads, w, x, out, first),
        Bf16Matmul::Vectors => gemm_by_vectors(threads, isa, w, x, out, first),
        _ => gemv(threads, isa, w, x, out, first),
    });
}

/// Panels per work item when memory-bound.
fn panels_per_item(w: PanelReader<'_, '_, Bf16Layout>) -> usize {
    (ITEM_BYTES / w.panels.kind.panel_bytes().max(1)).clamp(1, 64).next_multiple_of(2)
}

/// GEMV: groups of panels as work items, all rows in each.
fn gemv(
    threads: &ThreadPool,
    isa: Isa,
    w: PanelReader<'_, '_, Bf16Layout>,
    x: &Bf16Activations,
    out: &Output<'_>,
    first: &Prologue<'_>,
) {
    let (all, group) = (w.panels.panels(), panels_per_item(w));
    threads.each_in_order_after(
        first,
        &|item| w.packed_from(item * group),
        all.div_ceil(group),
        &|worker, item| {
            let scratch = worker.scratch::<PanelScratch>();
            for n in item * group..all.min((item + 1) * group) {
                let tiles = w.panel(n, scratch);
                // SAFETY: the rows exist; the outputs are exclusive to this work item.
                unsafe { vector_panel(isa, tiles, x, n * LANES, out.rows(), out) };
            }
        },
    );
}

/// GEMM without AMX: groups of panels x blocks of rows as work items.
fn gemm_by_vectors(
    threads: &ThreadPool,
    isa: Isa,
    w: PanelReader<'_, '_, Bf16Layout>,
    x: &Bf16Activations,
    out: &Output<'_>,
    first: &Prologue<'_>,
) {
    let (all, rows) = (w.panels.panels(), out.rows());
    let groups = all.div_ceil(vector_gemm::PANELS);
    let begins = |item: usize| w.packed_from(item % groups * vector_gemm::PANELS);
    threads.each_in_order_after(
        first,
        &begins,
        groups * rows.div_ceil(vector_gemm::BLOCK),
        &|worker, item| {
            let (first, row) = (item % groups * vector_gemm::PANELS, item / groups * vector_gemm::BLOCK);
            let panels = first..all.min(first + vector_gemm::PANELS);
            // SAFETY: the panels and rows exist; the outputs are exclusive to this work item.
            unsafe {
                vector_gemm::panels(isa, &w, panels, x, row..rows.min(row + vector_gemm::BLOCK), worker, out)
            };
        },
    );
}

/// GEMM on AMX. Few rows are memory-bound and use work items of more panels.
#[cfg(target_arch = "x86_64")]
fn gemm_by_tiles(
    threads: &ThreadPool,
    w: PanelReader<'_, '_, Bf16Layout>,
    x: &Bf16Activations,
    out: &Output<'_>,
    first: &Prologue<'_>,
) {
    let (all, rows) = (w.panels.panels(), out.rows());
    let (block, group) = if rows > 2 * TILE {
        (token_blocks(rows, x.steps * STEP * 2), 4)
    } else {
        (rows, panels_per_item(w))
    };
    let groups = all.div_ceil(group);
    let begins = |item: usize| w.packed_from(item % groups * group);
    threads.each_in_order_after(first, &begins, groups * rows.div_ceil(block.max(1)), &|worker, item| {
        let panels = item % groups * group..all.min((item % groups + 1) * group);
        let first = item / groups * block;
        // SAFETY: the instruction set implies that AMX is permitted; the rows exist, and the outputs are
        // exclusive to this work item.
        unsafe { amx::panels(&w, panels, x, first..rows.min(first + block), worker, out) };
    });
}
