//! Fused gate and up projection (SwiGLU) for GEMM: `out = act(gate x) * (up x)`, quantized to int8
//! in cache.
//!
//! One work item is a superblock of 256 outputs x a block of rows. For each of its panels the gate
//! and up panels are multiplied as a pair and activated; the finished superblock is quantized
//! straight into the operand of the down projection. No f32 intermediate goes to memory. The bits
//! equal those of the separate steps; `tests.rs` checks this.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::block::pair_times_rows;
use crate::gemm::int8::panel_pair::{BLOCK, Pair, PairScratch, with_room};
use crate::gemm::int8::product::{MADE, fits};
use crate::gemm::output::token_blocks;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemm;
use crate::rowwise::gate::gate as activate;
use crate::threads::pool::ThreadPool;
use crate::weights::int8::format::SUPERBLOCK;
use crate::weights::int8::layouts::with_layout;
use crate::weights::int8::panels::{QuantPanels, QuantReader};
use crate::weights::panels::PanelScratch;
use kvasir_program::Activation;
use std::cell::RefCell;
use std::ops::Range;

/// Gate and up matrices of one format and shape, the activation that joins them, and the kernel.
pub(crate) struct Gated<'w> {
    gate: &'w QuantPanels,
    up: &'w QuantPanels,
    activation: Activation,
    isa: Isa,
    kernel: Int8Gemm,
}

/// Per-thread results: one activated panel, and a superblock of outputs for each row.
struct Results {
    panel: Vec<f32>,
    rows: Vec<[f32; SUPERBLOCK]>,
}

thread_local! {
    static RESULTS: RefCell<Results> = const { RefCell::new(Results { panel: Vec::new(), rows: Vec::new() }) };
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
        team: &ThreadPool,
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
        self.gate.read(team, |gate| {
            self.up.read(team, |up| {
                team.each_in_order(to.superblocks * rows.div_ceil(block), &|_, item| {
                    let (first, s) = (item / to.superblocks * block, item % to.superblocks);
                    let rows = first..rows.min(first + block);
                    RESULTS.with_borrow_mut(|made| self.superblock((gate, up), (s, rows), x, made, to));
                });
            });
        });
    }

    /// Computes superblock `s` of the outputs for a block of rows.
    fn superblock(
        &self,
        (gate, up): (QuantReader<'_, '_>, QuantReader<'_, '_>),
        (s, rows): (usize, Range<usize>),
        x: &QuantActivations,
        made: &mut Results,
        to: &QuantActivations,
    ) {
        made.panel.resize(BLOCK * LANES, 0.0);
        made.rows.resize(BLOCK, [0.0; SUPERBLOCK]);
        let panels = s * SUPERBLOCK / LANES..self.gate.panels().min((s + 1) * SUPERBLOCK / LANES);
        let mut multiply = |panel: usize, [a, b]: &mut [PanelScratch; 2], room: &mut PairScratch| {
            let both = [gate.panel_at(panel, a), up.panel_at(panel, b)];
            let next = gate.packed_at(panel + 1).zip(up.packed_at(panel + 1));
            let pair = Pair { panels: both, next: next.map(<[_; 2]>::from) };
            // SAFETY: the kernel was chosen for this machine, the rows exist and begin with a tile, and
            // both panels have layout `L`.
            with_layout!(self.gate.kind.format, L => unsafe {
                pair_times_rows::<L, 2>(self.kernel, &pair, x, rows.clone(), room, None);
            });
            let [gate, up] = room.sums.each_ref().map(|sums| &sums.as_flattened()[..rows.len() * LANES]);
            activate(self.isa, gate, up, self.activation, &mut made.panel[..rows.len() * LANES]);
            let at = (panel - panels.start) * LANES;
            for (row, y) in made.rows.iter_mut().zip(made.panel[..rows.len() * LANES].as_chunks::<LANES>().0)
            {
                if let Some(part) = row[at..].first_chunk_mut() {
                    *part = *y;
                }
            }
        };
        MADE.with_borrow_mut(|made| {
            with_room(self.kernel, |room| {
                panels.clone().for_each(|panel| multiply(panel, made, room));
            });
        });
        // Outputs past the last are zero: padding weights of a panel are zero, and absent panels
        // are cleared here.
        for row in &mut made.rows[..rows.len()] {
            row[panels.len() * LANES..].fill(0.0);
        }
        for (row, y) in rows.zip(&made.rows) {
            // SAFETY: this work item alone writes this superblock of these rows, and the rows fit.
            unsafe { to.write_superblock(self.isa, row, s, y) };
        }
    }
}
