//! Operator fusion: decides how each op of a program runs on this backend, and where values live.
//!
//! - A norm, an activation or a gate whose result only matrices read is fused into the GEMM that
//!   follows: each row is computed just before it is quantized, and never stored.
//! - A norm before a rotary embedding runs in the rotary's buffer.
//! - Neighboring matrices with the same input are multiplied in one pass (fused QKV, fused gate and
//!   up).
//! - A gated MLP's gate and up matrices and its activation can run as one op.
//!
//! Fusion never changes the order of arithmetic, so results are bit-identical without it. Values
//! that taps keep are never fused away.

use crate::gemm::output::AT_ONCE;
use crate::weights::linear::{Form, OpWeights, Packed};
use kvasir_program::{Buffers, Op, Program, ValueId};

/// A program's execution plan on this backend.
pub(crate) struct Lowered {
    /// How each op runs.
    pub(crate) runs: Vec<Runs>,
    /// Buffer assignment of all values.
    pub(crate) buffers: Buffers,
}

/// How one op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Fused into the next op.
    Fused,
    /// First of this many matrices that are multiplied in one pass.
    Merged(usize),
    /// First of the [`GATED_MLP_OPS`] ops of a gated MLP that run as one where that pays; otherwise
    /// the first `matrices` matrices are multiplied in one pass.
    GatedMlp { matrices: usize },
    /// By itself.
    Single,
}

/// Ops of a gated MLP: the gate matrix, the up matrix, and the activation that combines them.
pub(crate) const GATED_MLP_OPS: usize = 3;

impl Lowered {
    /// Plans fusion and buffers. Values in `keep` are materialized and survive the step.
    pub(crate) fn new(program: &Program, weights: &[OpWeights], keep: &[ValueId]) -> Self {
        let merged = merged(program, weights, keep);
        let buffers = Buffers::plan_merged(program, keep, &merged);
        let runs = |at: usize| match siblings(program, weights, &buffers, at) {
            _ if merged[at] => Runs::Fused,
            0 => Runs::Single,
            matrices if begins_gated_mlp(program, weights, &merged, keep, at) => Runs::GatedMlp { matrices },
            matrices => Runs::Merged(matrices),
        };
        Self { runs: (0..program.ops.len()).map(runs).collect(), buffers }
    }
}

/// Which ops are fused into the next one: their rows are computed where read, and never stored.
///
/// A norm, an activation or a gate that only matrices read computes each row just before it is
/// quantized. A norm before a rotary embedding writes to the buffer of the rotary embedding. The
/// arithmetic is the same, so results are bit-identical. Values in `keep` are stored.
fn merged(program: &Program, weights: &[OpWeights], keep: &[ValueId]) -> Vec<bool> {
    let fits = |at: usize| {
        let op = &program.ops[at];
        let taken = |by: &Op| by.inputs().any(|value| value == op.out());
        let Some(next) = program.ops.get(at + 1).filter(|next| taken(next)) else { return false };
        if !matches!(op, Op::Norm { .. } | Op::Gate { .. } | Op::Elementwise { .. })
            || keep.contains(&op.out())
        {
            return false;
        }
        let last = (at + 1..program.ops.len()).rfind(|i| taken(&program.ops[*i])).unwrap_or(at);
        if matches!(next, Op::Rotary { .. }) {
            return last == at + 1;
        }
        // The quantized rows made for the first matrix serve the others, if no other GEMM
        // overwrites them in between.
        let Some(form) = form(&weights[at + 1]) else { return false };
        (at + 1..=last).all(|i| {
            let matrix = matches!(program.ops[i], Op::Linear { .. } | Op::Head { .. });
            match (taken(&program.ops[i]), matrix) {
                (true, true) => self::form(&weights[i]) == Some(form),
                (takes, _) => !takes && matches!(weights[i], OpWeights::None),
            }
        })
    };
    (0..program.ops.len()).map(fits).collect()
}

/// Whether an op begins a gated MLP that can run as one op: both matrices and the down projection
/// are quantized, and the gate's result is fused into the latter. Values in `keep` are stored,
/// which rules it out.
fn begins_gated_mlp(
    program: &Program,
    weights: &[OpWeights],
    merged: &[bool],
    keep: &[ValueId],
    at: usize,
) -> bool {
    let takers = |value: ValueId| program.ops.iter().flat_map(Op::inputs).filter(|v| *v == value).count();
    let alone = |value: ValueId| takers(value) == 1 && !keep.contains(&value);
    let integers = |at: usize| match weights.get(at) {
        Some(OpWeights::One(l)) => matches!(l.packed, Packed::Quant(_)) && l.bias.is_none(),
        _ => false,
    };
    match program.ops.get(at..at + GATED_MLP_OPS) {
        Some(
            [
                Op::Linear { x: a, out: first, .. },
                Op::Linear { x: b, out: second, .. },
                Op::Gate { gate, up, .. },
            ],
        ) => {
            (a, first, second) == (b, gate, up)
                && alone(*gate)
                && alone(*up)
                && (merged[at + 2] && integers(at) && integers(at + 1))
                && weights.get(at + GATED_MLP_OPS).and_then(form) == Some(Form::Quantized)
        }
        _ => false,
    }
}

/// Number of neighboring matrices, from op `at` on, that read the same rows and are multiplied in
/// one pass; 0 if the op is no matrix.
fn siblings(program: &Program, weights: &[OpWeights], buffers: &Buffers, at: usize) -> usize {
    let matrix = |at: usize| match (program.ops.get(at)?, weights.get(at)?) {
        (Op::Linear { x, out, .. } | Op::Head { x, out, .. }, OpWeights::One(_)) => {
            Some((*x, program.value(*out).rows, buffers.of_value[out.0 as usize]?))
        }
        _ => None,
    };
    let Some((x, rows, place)) = matrix(at) else { return 0 };
    let mut places = vec![place];
    // The LM head is never combined.
    let linear = |at: usize| matches!(program.ops[at], Op::Linear { .. });
    for next in (at + 1..at + AT_ONCE).take_while(|_| linear(at)) {
        match matrix(next).filter(|_| linear(next)) {
            Some(next) if (next.0, next.1) == (x, rows) && !places.contains(&next.2) => places.push(next.2),
            _ => break,
        }
    }
    places.len()
}

/// The form in which a GEMM takes its input rows, if they are converted (quantized or rounded to
/// bf16) first.
fn form(weights: &OpWeights) -> Option<Form> {
    match weights {
        OpWeights::One(l) => Some(l.packed.form()).filter(|form| *form != Form::F32),
        _ => None,
    }
}
