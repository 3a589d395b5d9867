//! Linear layers: prepares activations once per operand (16-bit integers, bf16 or f32) and picks the
//! kernels.
//!
//! Matrices that share an operand (Q, K, V; gate, up) share its prepared rows: each buffer knows
//! the value that it holds. For few rows the preparation is the prologue (`Prologue`) of the product
//! and runs on the calling thread while the workers prefetch weights. For many rows it is a
//! parallel region of its own, because parallel regions do not nest. Results equal those of
//! preparing each operand anew.

use crate::gemm::bf16::activations::{Bf16Activations, Bf16Terms};
use crate::gemm::bf16::product::matmul_bf16;
use crate::gemm::f32::product::{ActivationRows, matmul_f32};
use crate::gemm::output::Output;
use crate::gemm::quant::activations::QuantActivations;
use crate::gemm::quant::gated::Gated;
use crate::gemm::quant::product::matmul_quant;
use crate::isa::features::Isa;
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::threads::rows::{for_each_row, runs_on_caller};
use crate::threads::worker::Worker;
use crate::weights::linear::{Form, Linear, Packed};
use kvasir_program::{Activation, ValueId};
use std::io;

/// The activations that a matrix is multiplied with.
pub(crate) enum Operand<'a> {
    /// Rows in memory and their stride in numbers.
    Rows(&'a [f32], usize),
    /// Rows computed on demand: `make(row, out)`. Not supported by f32 matrices.
    Made(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
}

/// Scratch for a row that is computed on demand.
#[derive(Default)]
struct MadeRow(Vec<f32>);

impl Operand<'_> {
    /// Calls `take` with row `row`, `width` numbers.
    fn with(&self, row: usize, width: usize, worker: &mut Worker, take: impl FnOnce(&[f32])) {
        match self {
            Self::Rows(x, stride) => take(&x[row * stride..row * stride + width]),
            Self::Made(make) => {
                let MadeRow(made) = worker.scratch();
                // The buffer never shrinks: growing zeroes memory that is then overwritten.
                if made.len() < width {
                    made.resize(width, 0.0);
                }
                make(row, &mut made[..width]);
                take(&made[..width]);
            }
        }
    }
}

/// Records `of` as the prepared operand; returns whether its rows must be prepared. An unnamed
/// operand always must.
fn is_new(last: &mut Option<ValueId>, of: Option<ValueId>) -> bool {
    std::mem::replace(last, of) != of || of.is_none()
}

/// The preparation of `n` rows as a prologue. Few rows run on the calling thread as part of the
/// next parallel region; many rows run now in a parallel region of their own, because regions do
/// not nest.
fn prologue<'a>(
    threads: &ThreadPool,
    n: usize,
    prepare: &'a (dyn Fn(&mut Worker, usize) + Sync),
) -> Prologue<'a> {
    if runs_on_caller(n) {
        return Prologue::of(n, prepare);
    }
    for_each_row(threads, n, prepare);
    Prologue::none()
}

/// Gate and up projection of a feed-forward block, and the activation that joins them.
pub(crate) struct GateAndUp<'w> {
    pub(crate) gate: &'w Linear,
    pub(crate) up: &'w Linear,
    pub(crate) activation: Activation,
}

/// Prepared activations.
struct FloatRows {
    activations: Bf16Activations,
    /// The program value that they were made from.
    source: Option<ValueId>,
}

impl FloatRows {
    fn new(rows: usize, inputs: usize, terms: Bf16Terms) -> io::Result<Self> {
        Ok(Self { activations: Bf16Activations::new(rows, inputs, terms)?, source: None })
    }
}

/// Prepared activations in the formats of the kernels, shared by all matrices with one operand.
pub(crate) struct Prepared {
    isa: Isa,
    /// Empty with tiles, which multiply dequantized weights by `float`.
    quant: QuantActivations,
    /// Output of the fused gate and up projection, while `quant` is its input.
    gated: QuantActivations,
    quant_of: Option<ValueId>,
    float: FloatRows,
    /// f32 activations for f16 weights. Empty unless the ISA has bf16 dot products, for which `float`
    /// is rounded to bf16.
    whole: FloatRows,
    /// Two bf16 terms per activation, for the LM head: rounding its input is the largest single error
    /// of the logits. Empty unless the ISA has bf16 dot products.
    lm_head: FloatRows,
}

impl Prepared {
    /// Buffers for `rows` rows of up to `inputs` numbers; bf16 kernels take
    /// `terms` per activation.
    pub(crate) fn new(isa: Isa, rows: usize, inputs: usize, terms: Bf16Terms) -> io::Result<Self> {
        let quant_rows = if isa.tiles { 0 } else { rows };
        let quant = || QuantActivations::new(quant_rows, inputs);
        let rows_if_bf16_dot = if isa.has_bf16_dot() { rows } else { 0 };
        Ok(Self {
            isa,
            quant: quant()?,
            gated: quant()?,
            quant_of: None,
            float: FloatRows::new(rows, inputs, terms)?,
            whole: FloatRows::new(rows_if_bf16_dot, inputs, Bf16Terms::Whole)?,
            lm_head: FloatRows::new(rows_if_bf16_dot, inputs, Bf16Terms::Two)?,
        })
    }

    /// Invalidates all prepared operands.
    pub(crate) fn invalidate(&mut self) {
        self.quant_of = None;
        [&mut self.float, &mut self.whole, &mut self.lm_head]
            .into_iter()
            .for_each(|float| float.source = None);
    }

    /// Returns whether `of` must be quantized, and shapes the buffer for `n` rows of it if so.
    fn begin_quant(&mut self, inputs: usize, of: Option<ValueId>, n: usize) -> bool {
        let new = is_new(&mut self.quant_of, of);
        if new {
            self.quant.reshape(inputs, n);
        }
        new
    }

    fn quantize(&self, x: &Operand<'_>, inputs: usize, row: usize, worker: &mut Worker) {
        // SAFETY: each row is written by one thread, and the buffer fits all rows.
        x.with(row, inputs, worker, |x| unsafe { self.quant.write(self.isa, row, 0, x) });
    }

    /// Fused `out = act(gate x) * (up x)`, left quantized as the next operand; its f32 values are
    /// not stored. Returns false, with nothing done, if the kernel does not support or does not pay
    /// for `n` rows.
    pub(crate) fn gate(
        &mut self,
        threads: &ThreadPool,
        GateAndUp { gate, up, activation }: GateAndUp<'_>,
        of: ValueId,
        x: &Operand<'_>,
        n: usize,
        out: ValueId,
    ) -> bool {
        let (Packed::Quant(w), Packed::Quant(partner)) = (&gate.packed, &up.packed) else { return false };
        let Some(gated) = Gated::new(self.isa, [w, partner], activation, n) else { return false };
        if self.begin_quant(gate.inputs, Some(of), n) {
            for_each_row(threads, n, &|worker, row| self.quantize(x, gate.inputs, row, worker));
        }
        self.gated.reshape(gate.outputs, n);
        gated.multiply(threads, &self.quant, n, &self.gated);
        std::mem::swap(&mut self.quant, &mut self.gated);
        self.quant_of = Some(out);
        true
    }

    /// `out = W x + bias` for each of these matrices, all with the same rows. `of` names the
    /// operand, so that later calls can reuse its prepared rows.
    pub(crate) fn multiply(
        &mut self,
        threads: &ThreadPool,
        products: &mut [Option<(&Linear, Output<'_>)>],
        of: Option<ValueId>,
        x: &Operand<'_>,
    ) {
        let form = |product: &Option<(&Linear, _)>| product.as_ref().map(|(l, _)| l.packed.form());
        for products in products.chunk_by_mut(|a, b| form(a) == form(b)) {
            self.multiply_alike(threads, products, of, x);
            for (l, out) in products.iter_mut().flatten() {
                if let Some(bias) = &l.bias {
                    out.add(bias);
                }
            }
        }
    }

    /// The products of matrices of one kernel family.
    fn multiply_alike(
        &mut self,
        threads: &ThreadPool,
        products: &mut [Option<(&Linear, Output<'_>)>],
        of: Option<ValueId>,
        x: &Operand<'_>,
    ) {
        let Some(Some((first, out))) = products.first() else { return };
        let (isa, inputs, n) = (self.isa, first.inputs, out.rows());
        match &first.packed {
            Packed::Quant(_) if !isa.tiles => {
                let new = self.begin_quant(inputs, of, n);
                let matrices = products.iter_mut().flatten().filter_map(|(l, out)| match &l.packed {
                    Packed::Quant(w) => Some((w, out)),
                    _ => None,
                });
                let quantize = |worker: &mut Worker, row| self.quantize(x, inputs, row, worker);
                let first = if new { prologue(threads, n, &quantize) } else { Prologue::none() };
                matmul_quant(threads, isa, matrices, &self.quant, &first);
            }
            // With tiles, panels are dequantized to bf16.
            Packed::Quant(_) | Packed::Bf16(_) => {
                let float = match first.packed.form() {
                    Form::F16 if isa.has_bf16_dot() => &mut self.whole,
                    _ if first.makes_logits && isa.has_bf16_dot() => &mut self.lm_head,
                    _ => &mut self.float,
                };
                let new = is_new(&mut float.source, of);
                if new {
                    float.activations.reshape(inputs, n);
                }
                let activations = &float.activations;
                let round = |worker: &mut Worker, row| {
                    // SAFETY: each row is written by one thread, and the buffer fits all rows.
                    x.with(row, inputs, worker, |x| unsafe { activations.write_row(isa, row, x) });
                };
                let first = if new { prologue(threads, n, &round) } else { Prologue::none() };
                for (l, out) in products.iter_mut().flatten() {
                    match &l.packed {
                        Packed::Quant(w) => matmul_bf16(threads, isa, w, activations, out, &first),
                        Packed::Bf16(w) => matmul_bf16(threads, isa, w, activations, out, &first),
                        Packed::F32(_) => {}
                    }
                }
            }
            Packed::F32(_) => {
                let Operand::Rows(values, stride) = *x else {
                    unreachable!("rows are made only for matrices that take them in another form")
                };
                let x = ActivationRows { values, stride };
                for (l, out) in products.iter_mut().flatten() {
                    if let Packed::F32(w) = &l.packed {
                        matmul_f32(threads, isa, w, x, out);
                    }
                }
            }
        }
    }
}
