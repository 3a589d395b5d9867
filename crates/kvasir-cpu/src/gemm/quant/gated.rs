//! Fused gate and up projection (SwiGLU) for GEMM: `out = act(gate x) * (up x)`, quantized.
//!
//! One work item is two panels (32 outputs) x a block of rows. For each panel, gate and up are
//! multiplied and activated; each finished block of 32 outputs is quantized straight into the
//! operand of the down projection. No f32 intermediate goes to memory. The bits equal those of the
//! separate steps; `tests.rs` checks this.

use crate::gemm::quant::activations::QuantActivations;
use crate::gemm::quant::gemm::{GemmScratch, ROWS, panel_times_rows, rows_per_block};
use crate::gemm::quant::product::fits;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::{MAX_GEMV_ROWS, QuantKernel, kv_prefetch_pays};
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::rowwise::activate;
use crate::threads::pool::ThreadPool;
use crate::threads::worker::Worker;
use crate::weights::quant::format::BLOCK;
use crate::weights::quant::layouts::with_layout;
use crate::weights::quant::panels::{QuantPanels, QuantReader};
use kvasir_program::Activation;
use std::ops::Range;

/// Panels per block of outputs.
const PANELS: usize = BLOCK / LANES;

/// Scratch of one worker: both projections, one activated panel, and a block of each row.
#[derive(Default)]
struct GatedScratch {
    gate: GemmScratch,
    up: GemmScratch,
    activated: Vec<f32>,
    rows: Vec<[f32; BLOCK]>,
}

/// Gate and up matrices of one format and shape, and the activation that combines them.
pub(crate) struct Gated<'w> {
    gate: &'w QuantPanels,
    up: &'w QuantPanels,
    activation: Activation,
    isa: Isa,
}

/// One work item: a block of outputs x a block of rows.
struct WorkItem<'a, 'g, 'u> {
    gate: QuantReader<'a, 'g>,
    up: QuantReader<'a, 'u>,
    block: usize,
    rows: Range<usize>,
}

impl<'w> Gated<'w> {
    /// `None` if the matrices differ in format or shape, for rows that GEMV multiplies, and with AMX.
    pub(crate) fn new(
        isa: Isa,
        [gate, up]: [&'w QuantPanels; 2],
        activation: Activation,
        rows: usize,
    ) -> Option<Self> {
        let alike = gate.kind.format == up.kind.format
            && (gate.kind.blocks, gate.outputs) == (up.kind.blocks, up.outputs);
        (alike && rows > MAX_GEMV_ROWS && !isa.tiles).then_some(Self { gate, up, activation, isa })
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
        assert!(fits(self.gate, x, rows), "the activations hold the rows and blocks of the matrices");
        let blocks = self.gate.outputs.div_ceil(BLOCK);
        assert!(to.takes(rows) && to.blocks == blocks, "the output holds the rows and blocks");
        let at_once = rows_per_block(x, rows);
        self.gate.read(threads, |gate| {
            self.up.read(threads, |up| {
                threads.each_in_order(blocks * rows.div_ceil(at_once), &|worker, item| {
                    let first = item / blocks * at_once;
                    let rows = first..rows.min(first + at_once);
                    self.multiply_item(WorkItem { gate, up, block: item % blocks, rows }, x, worker, to);
                });
            });
        });
    }

    /// Computes a block of the outputs for a block of rows.
    fn multiply_item(
        &self,
        WorkItem { gate, up, block, rows }: WorkItem<'_, '_, '_>,
        x: &QuantActivations,
        worker: &mut Worker,
        to: &QuantActivations,
    ) {
        let kernel = QuantKernel::of(self.isa);
        let (scratch, kv_queue) = worker.scratches::<GatedScratch, KvPrefetchQueue>();
        let GatedScratch { gate: gate_scratch, up: up_scratch, activated, rows: gated_rows } = scratch;
        activated.resize(ROWS * LANES, 0.0);
        gated_rows.resize(ROWS, [0.0; BLOCK]);
        let panels = block * PANELS..self.gate.panels().min((block + 1) * PANELS);
        for panel in panels.clone() {
            let addresses = [
                gate.panel(panel, &mut gate_scratch.panel).as_ptr(),
                up.panel(panel, &mut up_scratch.panel).as_ptr(),
            ];
            for (at, scratch) in addresses.into_iter().zip([&mut *gate_scratch, &mut *up_scratch]) {
                let kv_queue = kv_prefetch_pays(self.isa, rows.len()).then_some(&mut *kv_queue);
                // SAFETY: the kernel was chosen for this machine, the rows exist and begin with a
                // tile, and the panel has layout `L`.
                with_layout!(self.gate.kind.format, L => unsafe {
                    panel_times_rows::<L>(kernel, at, x, rows.clone(), scratch, kv_queue);
                });
            }
            let [gate, up] =
                [&gate_scratch.sums, &up_scratch.sums].map(|sums| sums[..rows.len()].as_flattened());
            let activated = &mut activated[..rows.len() * LANES];
            activate(self.isa, gate, up, self.activation, activated);
            let at = (panel - panels.start) * LANES;
            for (row, y) in gated_rows.iter_mut().zip(activated.as_chunks::<LANES>().0) {
                row[at..at + LANES].copy_from_slice(y);
            }
        }
        // Outputs past the last are zero: padding weights of a panel are zero, and absent panels
        // are cleared here.
        for row in &mut gated_rows[..rows.len()] {
            row[panels.len() * LANES..].fill(0.0);
        }
        for (row, y) in rows.zip(gated_rows) {
            // SAFETY: this work item alone writes this block of these rows, and the rows fit.
            unsafe { to.write(self.isa, row, block, y) };
        }
    }
}
