//! bf16 GEMM and GEMV: partitioning into work items.
//!
//! Work items are disjoint sets of outputs (panels x row blocks). All kernels sum in the order of
//! `weights::bf16::Bf16Panels`, so results depend neither on the kernel nor on the batch.

use crate::gemm::bf16::activations::Bf16Activations;
#[cfg(target_arch = "x86_64")]
use crate::gemm::bf16::amx;
use crate::gemm::bf16::gemv::{PanelTiles, vector_panel};
use crate::gemm::bf16::vector_gemm;
use crate::gemm::output::{Output, token_blocks};
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, STEP, TILE};
use crate::kernels::Bf16Matmul;
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::threads::worker::Worker;
use crate::weights::bf16::{TileLayout, TileScratch};
use crate::weights::panels::{PanelReader, Panels};
use std::ops::Range;

/// Target bytes of weights per work item when memory-bound.
const ITEM_BYTES: usize = 64 * 1024;

/// `out[row] = w x[row]`. The prologue `first` prepares `x` before any work item.
pub(crate) fn matmul_bf16<K: TileLayout>(
    threads: &ThreadPool,
    isa: Isa,
    w: &Panels<K>,
    x: &Bf16Activations,
    out: &mut Output<'_>,
    first: &Prologue<'_>,
) {
    assert!(x.takes(out.rows()) && x.steps == w.kind.steps() * x.terms.tiles(), "rows and matrix fit");
    // bf16 dot products cannot read f16 weights, which are widened to f32 instead.
    let isa = if w.kind.is_f16() { isa.without_bf16_dot() } else { isa };
    w.read(threads, |w| {
        let product = Product { threads, isa, w, x, out, first };
        match Bf16Matmul::of(isa, out.rows()) {
            #[cfg(target_arch = "x86_64")]
            Bf16Matmul::Tiles => product.gemm_by_tiles(),
            Bf16Matmul::Vectors => product.gemm_by_vectors(),
            _ => product.gemv(),
        }
    });
}

/// One matrix product.
struct Product<'a, 'r, K> {
    threads: &'a ThreadPool,
    isa: Isa,
    w: PanelReader<'a, 'r, K>,
    x: &'a Bf16Activations,
    out: &'a Output<'a>,
    first: &'a Prologue<'a>,
}

impl<K: TileLayout> Product<'_, '_, K> {
    /// Panels per work item when memory-bound.
    fn panels_per_item(&self) -> usize {
        (ITEM_BYTES / self.w.panels.kind.panel_bytes().max(1)).clamp(1, 64).next_multiple_of(2)
    }

    /// Runs `job(worker, panels, rows)` for groups of `group` panels x blocks of `block` rows.
    fn each_item(
        &self,
        group: usize,
        block: usize,
        job: impl Fn(&mut Worker, Range<usize>, Range<usize>) + Sync,
    ) {
        let (all, rows) = (self.w.panels.panels(), self.out.rows());
        let groups = all.div_ceil(group);
        let begins = |item: usize| self.w.packed_from(item % groups * group);
        let items = groups * rows.div_ceil(block.max(1));
        self.threads.each_in_order_after(self.first, &begins, items, &|worker, item| {
            let (panel, row) = (item % groups * group, item / groups * block);
            job(worker, panel..all.min(panel + group), row..rows.min(row + block));
        });
    }

    /// GEMV: all rows in each work item.
    fn gemv(&self) {
        let (isa, x, out) = (self.isa, self.x, self.out);
        self.each_item(self.panels_per_item(), out.rows(), |worker, panels, rows| {
            let scratch = worker.scratch::<TileScratch>();
            for n in panels {
                let is_f16 = self.w.panels.kind.is_f16();
                let tiles = PanelTiles { bytes: K::tiles(&self.w, n, scratch), is_f16, first: n * LANES };
                // SAFETY: the rows exist; the outputs are exclusive to this work item.
                unsafe { vector_panel(isa, tiles, x, rows.end, out) };
            }
        });
    }

    /// GEMM without AMX.
    fn gemm_by_vectors(&self) {
        self.each_item(vector_gemm::PANELS, vector_gemm::BLOCK, |worker, panels, rows| {
            // SAFETY: the panels and rows exist; the outputs are exclusive to this work item.
            unsafe { vector_gemm::panels(self.isa, &self.w, panels, self.x, rows, worker, self.out) };
        });
    }

    /// GEMM on AMX. Few rows are memory-bound and use work items of more panels.
    #[cfg(target_arch = "x86_64")]
    fn gemm_by_tiles(&self) {
        let rows = self.out.rows();
        let (block, group) = if rows > 2 * TILE {
            (token_blocks(rows, self.x.steps * STEP * 2), 4)
        } else {
            (rows, self.panels_per_item())
        };
        self.each_item(group, block, |worker, panels, rows| {
            // SAFETY: the instruction set implies that AMX is permitted; the rows exist, and the
            // outputs are exclusive to this work item.
            unsafe { amx::panels(&self.w, panels, self.x, rows, worker, self.out) };
        });
    }
}
