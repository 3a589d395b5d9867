//! Integer GEMM and GEMV: dispatch and partitioning; several matrices with one operand form one
//! parallel region.
//!
//! Q, K and V (or gate and up) are multiplied in one fork-join, because each one costs
//! synchronization. Work items are ranges of panels (x row blocks for GEMM) over all matrices, with
//! disjoint outputs. GEMV over packed matrices also feeds the prefetch tuner (`prefetch/tuner.rs`)
//! with timings.

use crate::gemm::output::{AT_ONCE, Output};
use crate::gemm::quant::activations::QuantActivations;
use crate::gemm::quant::gemm::{GemmScratch, panel_times_rows, rows_per_block, store_sums};
use crate::gemm::quant::gemv::{Panel, gemv, tuner};
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::{MAX_GEMV_ROWS, QuantKernel, kv_prefetch_pays};
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::threads::worker::Worker;
use crate::weights::panels::{PanelLayout, PanelScratch};
use crate::weights::quant::layouts::{Layout, with_layout};
use crate::weights::quant::panels::{QuantPanels, QuantReader};
use std::ops::Range;

/// Target bytes of weights per work item of at most [`MAX_ROWS_PER_ITEM`] rows.
const ITEM_BYTES: usize = 32 * 1024;
/// Row count up to which a work item holds several panels, because one takes too little time.
const MAX_ROWS_PER_ITEM: usize = 64;

/// `out[row] = w x[row]` for at most [`AT_ONCE`] matrices with the same rows. The prologue `first`
/// prepares `x`; the calling thread runs it before any work item.
pub(crate) fn matmul_quant<'a, 'o: 'a>(
    threads: &ThreadPool,
    isa: Isa,
    all: impl Iterator<Item = (&'a QuantPanels, &'a mut Output<'o>)>,
    x: &'a QuantActivations,
    first: &Prologue<'_>,
) {
    let mut products: [Option<Product<'_, '_>>; AT_ONCE] = [const { None }; AT_ONCE];
    let mut there = 0;
    for (w, out) in all {
        let out = &*out;
        assert!(fits(w, x, out.rows()), "rows and matrix fit");
        match w.packed_reader() {
            Some(reader) => {
                products[there] = Some(Product::new(isa, reader, x, out));
                there += 1;
            }
            None => w.read(threads, |w| multiply(threads, &[Some(Product::new(isa, w, x, out))], first)),
        }
    }
    multiply(threads, &products, first);
}

/// Whether `x` has room for `rows` rows with as many blocks as the matrix.
pub(crate) fn fits(w: &QuantPanels, x: &QuantActivations, rows: usize) -> bool {
    x.takes(rows) && x.blocks == w.kind.blocks
}

/// Runs all work items of the products as one parallel region.
fn multiply(threads: &ThreadPool, products: &[Option<Product<'_, '_>>], first: &Prologue<'_>) {
    let there = || products.iter().flatten();
    let pieces = there().map(|product| product.pieces).sum();
    // Maps a work item to its product and the index within it.
    let find = |mut piece: usize| {
        there().find_map(|product| {
            let found = (piece < product.pieces).then_some((product, piece));
            piece = piece.wrapping_sub(product.pieces);
            found
        })
    };
    let some = |pieces: Range<usize>| {
        let begins = |n: usize| match find(pieces.start + n) {
            Some((product, piece)) => product.w.packed_from(piece * product.panels),
            None => &[],
        };
        threads.each_in_order_after(first, &begins, pieces.len(), &|worker, n| {
            if let Some((product, piece)) = find(pieces.start + n) {
                // SAFETY: the function is that of the matrix's layout; products have disjoint
                // outputs, and so have the work items of one product.
                unsafe { (product.work)(product, piece, worker) };
            }
        });
    };
    if let Some(Some(first)) = products.first()
        && there().all(|product| product.block.is_none() && product.w.is_packed())
    {
        let bytes = there().map(|product| product.w.panels.bytes()).sum();
        let format = first.w.panels.kind.format;
        return tuner(format, first.x.blocks, first.out.rows()).run(bytes, pieces, some);
    }
    some(0..pieces);
}

/// One matrix product: weights, activations, output and its partitioning.
struct Product<'a, 'r> {
    isa: Isa,
    w: QuantReader<'a, 'r>,
    x: &'a QuantActivations,
    out: &'a Output<'a>,
    /// Number of work items.
    pieces: usize,
    /// Panels per work item.
    panels: usize,
    /// Rows per work item of a GEMM; `None` for GEMV, whose items have all rows.
    block: Option<usize>,
    /// Runs one work item, monomorphized for the matrix's layout.
    work: unsafe fn(&Self, usize, &mut Worker),
}

impl<'a, 'r> Product<'a, 'r> {
    /// Chooses GEMM or GEMV and the partitioning.
    fn new(isa: Isa, w: QuantReader<'a, 'r>, x: &'a QuantActivations, out: &'a Output<'a>) -> Self {
        let (all, rows) = (w.panels.panels(), out.rows());
        let work = with_layout!(w.panels.kind.format, L => Self::piece_of::<L> as unsafe fn(&Self, usize, &mut Worker));
        let panels = (ITEM_BYTES / w.panels.kind.panel_bytes().max(1)).clamp(1, 64);
        let block = (rows > MAX_GEMV_ROWS).then(|| rows_per_block(x, rows));
        let panels = if rows > MAX_ROWS_PER_ITEM { 1 } else { panels };
        let pieces = all.div_ceil(panels) * block.map_or(1, |block| rows.div_ceil(block));
        Self { isa, w, x, out, pieces, panels, block, work }
    }

    /// Runs one work item.
    ///
    /// # Safety
    /// The matrix must have the layout. No other thread may write the outputs of its panels.
    unsafe fn piece_of<L: Layout>(&self, piece: usize, worker: &mut Worker) {
        let Self { isa, w, x, out, .. } = *self;
        let (all, kernel) = (w.panels.panels(), QuantKernel::of(isa));
        let groups = all.div_ceil(self.panels);
        let first = piece % groups * self.panels;
        let panels = first..all.min(first + self.panels);
        let Some(block) = self.block else {
            let scratch = worker.scratch::<PanelScratch>();
            for n in panels {
                let panel = Panel { bytes: w.panel(n, scratch), first: n * LANES };
                // SAFETY: the rows exist; the caller guarantees the outputs.
                unsafe { gemv::<L>(kernel, &panel, x, out) };
            }
            return;
        };
        let row = piece / groups * block;
        let rows = row..out.rows().min(row + block);
        let (scratch, kv_queue) = worker.scratches::<GemmScratch, KvPrefetchQueue>();
        for n in panels {
            let panel = w.panel(n, &mut scratch.panel).as_ptr();
            let kv_queue = kv_prefetch_pays(isa, rows.len()).then_some(&mut *kv_queue);
            // SAFETY: the kernel was chosen for this machine, and the rows exist; the caller
            // guarantees the outputs.
            unsafe {
                panel_times_rows::<L>(kernel, panel, x, rows.clone(), scratch, kv_queue);
                store_sums(scratch, rows.clone(), n * LANES, out);
            }
        }
    }
}
