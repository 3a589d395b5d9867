//! Integer GEMM and GEMV: dispatch and partitioning; several matrices with one operand form one
//! parallel region.
//!
//! Q, K and V (or gate and up) are multiplied in one fork-join, because each one costs
//! synchronization. Work items are ranges of panels (x row blocks for GEMM) over all matrices, with
//! disjoint outputs. GEMV over packed matrices also feeds the prefetch tuner (`prefetch/tuner.rs`)
//! with timings.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::block::gemm;
use crate::gemm::int8::gemv::{Panel, gemv};
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::gemv_x86;
use crate::gemm::int8::panel_pair::BLOCK;
use crate::gemm::output::{AT_ONCE, Output, token_blocks};
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::{Int8Gemm, Int8Gemv, SHORT};
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::threads::worker::Worker;
use crate::weights::int8::format::SUPERBLOCK;
use crate::weights::int8::layouts::{Layout, with_layout};
use crate::weights::int8::panels::{QuantPanels, QuantReader};
use crate::weights::panels::{PanelLayout, PanelScratch};
use std::ops::Range;

/// Target bytes of weights per GEMV work item.
const ITEM_BYTES: usize = 32 * 1024;

/// `out[row] = w x[row]` for at most [`AT_ONCE`] matrices with the same rows. The prologue `first`
/// prepares `x`; the calling thread runs it before any work item.
pub(crate) fn matmul<'a, 'o: 'a>(
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

/// Whether `x` has room for `rows` rows with as many superblocks as the matrix.
pub(crate) fn fits(w: &QuantPanels, x: &QuantActivations, rows: usize) -> bool {
    x.takes(rows) && x.superblocks * w.kind.format.planes == w.kind.superblocks
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
    #[cfg(target_arch = "x86_64")]
    if let Some(Some(first)) = products.first()
        && there().all(|product| product.gemm.is_none() && product.w.is_packed())
    {
        let bytes = there().map(|product| product.w.panels.bytes()).sum();
        let format = first.w.panels.kind.format;
        return gemv_x86::tuner(format, first.x.superblocks, first.out.rows()).run(bytes, pieces, some);
    }
    some(0..pieces);
}

/// How a product is multiplied as a GEMM.
#[derive(Clone, Copy)]
struct Gemm {
    kernel: Int8Gemm,
    /// Rows per work item.
    block: usize,
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
    /// `None` for GEMV, whose items have all rows.
    gemm: Option<Gemm>,
    /// Runs one work item, monomorphized for the matrix's layout.
    work: unsafe fn(&Self, usize, &mut Worker),
}

impl<'a, 'r> Product<'a, 'r> {
    /// Chooses GEMM or GEMV and the partitioning.
    fn new(isa: Isa, w: QuantReader<'a, 'r>, x: &'a QuantActivations, out: &'a Output<'a>) -> Self {
        let (all, rows) = (w.panels.panels(), out.rows());
        let work = with_layout!(w.panels.kind.format, L => Self::piece_of::<L> as unsafe fn(&Self, usize, &mut Worker));
        let once = (ITEM_BYTES / w.panels.kind.panel_bytes().max(1)).clamp(1, 64);
        if let Some(kernel) = Int8Gemm::of(w.panels.kind.format, isa, rows) {
            let block = token_blocks(rows, x.superblocks * SUPERBLOCK).min(BLOCK);
            let panels = if rows <= SHORT { once.next_multiple_of(2) } else { 2 };
            let pieces = all.div_ceil(panels) * rows.div_ceil(block);
            return Self { isa, w, x, out, pieces, panels, gemm: Some(Gemm { kernel, block }), work };
        }
        Self { isa, w, x, out, pieces: all.div_ceil(once), panels: once, gemm: None, work }
    }

    /// Runs one work item.
    ///
    /// # Safety
    /// The matrix must have the layout. No other thread may write the outputs of its panels.
    unsafe fn piece_of<L: Layout>(&self, piece: usize, worker: &mut Worker) {
        let Self { isa, w, x, out, .. } = *self;
        let all = w.panels.panels();
        let some = |group: usize| -> Range<usize> { group * self.panels..all.min((group + 1) * self.panels) };
        if let Some(Gemm { kernel, block }) = self.gemm {
            let groups = all.div_ceil(self.panels);
            let (first, panels) = (piece / groups * block, some(piece % groups));
            let rows = first..out.rows().min(first + block);
            // SAFETY: the kernel was chosen for this machine, and the rows exist; the caller
            // guarantees the outputs.
            return unsafe { gemm::<L>(kernel, w, panels, x, rows, worker, out) };
        }
        let (kernel, scratch) = (Int8Gemv::of(isa), worker.scratch::<PanelScratch>());
        for n in some(piece) {
            let panel = Panel { bytes: w.panel(n, scratch), first: n * LANES };
            // SAFETY: the rows exist; the caller guarantees the outputs.
            unsafe { gemv::<L>(kernel, &panel, x, out) };
        }
    }
}
