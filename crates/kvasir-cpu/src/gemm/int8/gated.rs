//! Fused gate and up projection (SwiGLU) for GEMM: `out = act(gate x) * (up x)`, quantized to int8.
//!
//! One work item is a superblock of 256 outputs x a block of rows. For each of its panels the gate
//! and up panels are multiplied as a pair and activated; the finished superblock is quantized
//! straight into the operand of the down projection. No f32 intermediate goes to memory. The bits
//! equal those of the separate steps; `tests.rs` checks this.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::block::pair_times_rows;
use crate::gemm::int8::panel_pair::{BLOCK, GemmScratch, Pair};
use crate::gemm::int8::product::fits;
use crate::gemm::output::token_blocks;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemm;
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::rowwise::gate as activate;
use crate::threads::pool::ThreadPool;
use crate::threads::worker::Worker;
use crate::weights::int8::format::SUPERBLOCK;
use crate::weights::int8::layouts::with_layout;
use crate::weights::int8::panels::{QuantPanels, QuantReader};
use kvasir_program::Activation;
use std::ops::Range;

/// Gate and up matrices of one format and shape, the activation that joins them, and the kernel.
pub(crate) struct Gated<'w> {
    gate: &'w QuantPanels,
    up: &'w QuantPanels,
    activation: Activation,
    isa: Isa,
    kernel: Int8Gemm,
}

/// One work item: a superblock of outputs x a block of rows.
struct WorkItem<'a, 'g, 'u> {
    gate: QuantReader<'a, 'g>,
    up: QuantReader<'a, 'u>,
    superblock: usize,
    rows: Range<usize>,
}

impl<'w> Gated<'w> {
    /// The fused product, if there is a kernel for these matrices that pays for `rows` rows.
    pub(crate) fn new(
        isa: Isa,
        [gate, up]: [&'w QuantPanels; 2],
        activation: Activation,
        rows: usize,
    ) -> Option<Self> {
        let alike = gate.kind.format == up.kind.format
            && (gate.kind.superblocks, gate.outputs) == (up.kind.superblocks, up.outputs);
        let kernel = Int8Gemm::of(gate.kind.format, isa, rows).filter(|_| alike)?;
        Some(Self { gate, up, activation, isa, kernel })
    }

    /// `to[row] = quantize(act(gate x[row]) * (up x[row]))` for the first `rows` rows. The bits are
    /// those of product, activation and quantization one after the other.
    pub(crate) fn multiply(
        &self,
        threads: &ThreadPool,
        x: &QuantActivations,
        rows: usize,
        to: &QuantActivations,
    ) {
        assert!(fits(self.gate, x, rows), "rows and matrices fit");
        assert!(
            to.takes(rows) && to.superblocks == self.gate.outputs.div_ceil(SUPERBLOCK),
            "and what comes of them"
        );
        let block = token_blocks(rows, x.superblocks * SUPERBLOCK).min(BLOCK);
        self.gate.read(threads, |gate| {
            self.up.read(threads, |up| {
                threads.each_in_order(to.superblocks * rows.div_ceil(block), &|worker, item| {
                    let first = item / to.superblocks * block;
                    let rows = first..rows.min(first + block);
                    let item = WorkItem { gate, up, superblock: item % to.superblocks, rows };
                    self.multiply_item(item, x, worker, to);
                });
            });
        });
    }

    /// Computes a superblock of the outputs for a block of rows.
    fn multiply_item(
        &self,
        item: WorkItem<'_, '_, '_>,
        x: &QuantActivations,
        worker: &mut Worker,
        to: &QuantActivations,
    ) {
        let WorkItem { gate, up, superblock, rows } = item;
        let (scratch, kv_queue) = worker.scratches::<GemmScratch, KvPrefetchQueue>();
        let GemmScratch { panels: [gate_panel, up_panel], pair: scratch, activated, gated_rows } = scratch;
        activated.resize(BLOCK * LANES, 0.0);
        gated_rows.resize(BLOCK, [0.0; SUPERBLOCK]);
        let first = superblock * SUPERBLOCK / LANES;
        let panels = first..self.gate.panels().min(first + SUPERBLOCK / LANES);
        let _tiles = scratch.begin(self.kernel);
        for panel in panels.clone() {
            let both = [gate.panel_at(panel, gate_panel), up.panel_at(panel, up_panel)];
            let next = gate.packed_at(panel + 1).zip(up.packed_at(panel + 1));
            let pair = Pair { panels: both, next: next.map(<[_; 2]>::from) };
            // SAFETY: the kernel was chosen for this machine, the rows exist and begin with a tile,
            // and both panels have layout `L`.
            with_layout!(self.gate.kind.format, L => unsafe {
                pair_times_rows::<L, 2>(self.kernel, &pair, x, rows.clone(), scratch, kv_queue, None);
            });
            let [gate, up] = scratch.sums.each_ref().map(|sums| &sums.as_flattened()[..rows.len() * LANES]);
            let activated = &mut activated[..rows.len() * LANES];
            activate(self.isa, gate, up, self.activation, activated);
            let at = (panel - panels.start) * LANES;
            for (row, y) in gated_rows.iter_mut().zip(activated.as_chunks::<LANES>().0) {
                if let Some(part) = row[at..].first_chunk_mut() {
                    *part = *y;
                }
            }
        }
        // Outputs past the last are zero: padding weights of a panel are zero, and absent panels
        // are cleared here.
        for row in &mut gated_rows[..rows.len()] {
            row[panels.len() * LANES..].fill(0.0);
        }
        for (row, y) in rows.zip(gated_rows) {
            // SAFETY: this work item alone writes this superblock of these rows, and the rows fit.
            unsafe { to.write_superblock(self.isa, row, superblock, y) };
        }
    }
}
