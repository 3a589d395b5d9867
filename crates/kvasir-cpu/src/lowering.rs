use crate::form::Form;
use crate::matmul::AT_ONCE;
use crate::model::OpWeights;
use crate::weights::Packed;
use kvasir_program::{Buffers, Op, Program, ValueId};

/// How a program's ops run here.
pub(crate) struct Lowered {
    /// How each does.
    pub(crate) runs: Vec<Runs>,
    /// Where values lie.
    pub(crate) buffers: Buffers,
}

/// How an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// Inside the next one.
    Inside,
    /// As the first of so many matrices that are multiplied at once.
    Together(usize),
    /// As the first of [`GATE`] ops that are one where that pays; otherwise so many matrices are multiplied at once.
    Gate { together: usize },
    /// By itself.
    Alone,
}

/// Ops of a gate: a matrix, its partner, and what joins them.
pub(crate) const GATE: usize = 3;

impl Lowered {
    /// Values in `keep` are stored, and stay.
    pub(crate) fn new(program: &Program, weights: &[OpWeights], keep: &[ValueId]) -> Self {
        let merged = merged(program, weights, keep);
        let buffers = Buffers::plan_merged(program, keep, &merged);
        let runs = |at: usize| match siblings(program, weights, &buffers, at) {
            _ if merged[at] => Runs::Inside,
            0 => Runs::Alone,
            together if begins_gate(program, weights, &merged, keep, at) => Runs::Gate { together },
            together => Runs::Together(together),
        };
        Self { runs: (0..program.ops.len()).map(runs).collect(), buffers }
    }
}

/// Which ops run inside the next one: their rows are made where they are taken, and never stored.
///
/// A norm or a gate whose result only matrices take makes each row just before it is quantised; a norm before a rotation makes its row in
/// the rotation's place. The arithmetic is the same, so the bits are. Values in `keep` are stored.
fn merged(program: &Program, weights: &[OpWeights], keep: &[ValueId]) -> Vec<bool> {
    let fits = |at: usize| {
        let op = &program.ops[at];
        let taken = |by: &Op| by.inputs().any(|value| value == op.out());
        let Some(next) = program.ops.get(at + 1).filter(|next| taken(next)) else { return false };
        if !matches!(op, Op::Norm { .. } | Op::Gate { .. }) || keep.contains(&op.out()) {
            return false;
        }
        let last = (at + 1..program.ops.len()).rfind(|i| taken(&program.ops[*i])).unwrap_or(at);
        if matches!(next, Op::Rotary { .. }) {
            return last == at + 1;
        }
        // What is prepared for the first matrix serves the others, if nothing else is prepared in between.
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

/// Whether an op begins a gate that can run as one, whose result is `merged` into a matrix of integers. Values in `keep` are stored.
fn begins_gate(
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
    match program.ops.get(at..at + GATE) {
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
                && weights.get(at + GATE).and_then(form) == Some(Form::Quantised)
        }
        _ => false,
    }
}

/// How many neighbouring matrices take the same rows and are multiplied at once, from an op on; none if it is no matrix that runs by itself.
fn siblings(program: &Program, weights: &[OpWeights], buffers: &Buffers, at: usize) -> usize {
    let matrix = |at: usize| match (program.ops.get(at)?, weights.get(at)?) {
        (Op::Linear { x, out, .. } | Op::Head { x, out, .. }, OpWeights::One(_)) => {
            Some((*x, program.value(*out).rows, buffers.of_value[out.0 as usize]?))
        }
        _ => None,
    };
    let Some((x, rows, place)) = matrix(at) else { return 0 };
    let mut places = vec![place];
    // A head is by itself.
    let linear = |at: usize| matches!(program.ops[at], Op::Linear { .. });
    for next in (at + 1..at + AT_ONCE).take_while(|_| linear(at)) {
        match matrix(next).filter(|_| linear(next)) {
            Some(next) if (next.0, next.1) == (x, rows) && !places.contains(&next.2) => places.push(next.2),
            _ => break,
        }
    }
    places.len()
}

/// In which form a matrix takes rows, if it takes them in another form than they are in.
fn form(weights: &OpWeights) -> Option<Form> {
    match weights {
        OpWeights::One(l) => Some(l.packed.form()).filter(|form| *form != Form::F32),
        _ => None,
    }
}
