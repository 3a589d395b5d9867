//! Replaces a short convolution whose result is sliced by one convolution per slice: it computes the
//! slice's channels only, and has its own state.
//!
//! One convolution may compute Q, K and V of a recurrence in one row. A rank needs some heads of
//! each, which are not one range of that row. Channels are independent, so the results are
//! bit-identical.

use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::recurrent::{StateFacts, StateId};
use crate::ir::value::{Holds, Value, ValueId};
use crate::ir::weight::{Weight, WeightId};
use std::collections::HashMap;
use std::ops::Range;

/// Divides each short convolution that only ungrouped slices read. Ops and states that become dead
/// stay in the program.
pub(crate) fn divide_convolutions(program: &mut Program) {
    let ops = std::mem::take(&mut program.ops);
    let mut divider = Divider { program, producers: HashMap::new() };
    for (at, op) in ops.iter().enumerate() {
        let is_divided = |conv: &Op| !divider.reading_slices(conv, &ops).is_empty();
        match op {
            Op::ShortConv { .. } if is_divided(op) => {
                for (part, out) in divider.reading_slices(op, &ops) {
                    divider.emit_convolution(op, part, out);
                }
            }
            Op::Slice { x, .. } if ops[..at].iter().any(|conv| conv.out() == *x && is_divided(conv)) => {}
            _ => {
                divider.push(op.clone());
            }
        }
    }
}

struct Divider<'a> {
    program: &'a mut Program,
    /// Indices of the emitted ops, by the value that they compute.
    producers: HashMap<ValueId, usize>,
}

impl Divider<'_> {
    fn push(&mut self, op: Op) -> ValueId {
        let out = op.out();
        self.producers.insert(out, self.program.ops.len());
        self.program.ops.push(op);
        out
    }

    fn width(&self, value: ValueId) -> usize {
        self.program.value(value).width()
    }

    /// The slices that read a short convolution, each as its channels and its result. Empty if
    /// `conv` is another op, or if a tap or any other op reads the result.
    fn reading_slices(&self, conv: &Op, ops: &[Op]) -> Vec<(Range<usize>, ValueId)> {
        let out = conv.out();
        if !matches!(conv, Op::ShortConv { .. }) || self.program.taps.iter().any(|(_, value)| *value == out) {
            return Vec::new();
        }
        let readers = ops.iter().filter(|op| op.inputs().any(|value| value == out));
        let slice = |op: &Op| match op {
            Op::Slice { groups: 1, start, width, out, .. } => Some((*start..*start + *width, *out)),
            _ => None,
        };
        readers.map(slice).collect::<Option<_>>().unwrap_or_default()
    }

    /// Emits a convolution that computes the channels `part` of `conv` as the value `out`.
    fn emit_convolution(&mut self, conv: &Op, part: Range<usize>, out: ValueId) {
        let mut conv = conv.clone();
        let Op::ShortConv { x, weight, bias, kernel, dilation, state, out: to, .. } = &mut conv else {
            return;
        };
        let facts = conv_state(part.len(), *kernel, *dilation);
        *x = self.slice_value(*x, part.clone());
        *weight = add_weight_part(self.program, *weight, part.start * *kernel..part.end * *kernel);
        *bias = bias.map(|bias| add_weight_part(self.program, bias, part.clone()));
        self.program.states.push(facts);
        *state = StateId(self.program.states.len() as u32 - 1);
        *to = out;
        self.push(conv);
    }

    /// Emits the elements `part` of a value. Slices the operands of the op that computes the value
    /// if that op is a concatenation, a matrix product or a scale; else slices the value.
    fn slice_value(&mut self, value: ValueId, part: Range<usize>) -> ValueId {
        if part == (0..self.width(value)) {
            return value;
        }
        let producer = self.producers.get(&value).map(|at| self.program.ops[*at].clone());
        match producer {
            Some(Op::Concat { a, groups: 1, .. }) if part.end <= self.width(a) => {
                return self.slice_value(a, part);
            }
            Some(Op::Concat { a, b, groups: 1, .. }) if part.start >= self.width(a) => {
                let offset = self.width(a);
                return self.slice_value(b, part.start - offset..part.end - offset);
            }
            _ => {}
        }
        let out = ValueId(self.program.values.len() as u32);
        let holds = Holds::Numbers(part.len());
        self.program.values.push(Value { holds, ..self.program.value(value) });
        match producer {
            Some(Op::Linear { x, matrix, .. }) => {
                self.push(Op::Linear { x, matrix: matrix.slice_outputs(part), out })
            }
            Some(Op::Scale { x, factor, by, .. }) => {
                let x = self.slice_value(x, part);
                self.push(Op::Scale { x, factor, by, out })
            }
            _ => self.push(Op::Slice { x: value, groups: 1, start: part.start, width: part.len(), out }),
        }
    }
}

/// The state of a convolution of `width` channels.
pub(crate) fn conv_state(width: usize, kernel: usize, dilation: usize) -> StateFacts {
    let history = (kernel - 1).saturating_mul(dilation);
    StateFacts { elements: width.saturating_mul(history), tail_elements: width }
}

/// Returns a weight that consists of the elements `part` of weight `id`: `id` itself if these are
/// all elements, an equal weight of the program, or a new one.
pub(crate) fn add_weight_part(program: &mut Program, id: WeightId, part: Range<usize>) -> WeightId {
    let whole = program.weight(program.resolve(id));
    let all = whole.elements();
    if part == (0..all.len()) {
        return id;
    }
    let part = Some(all.start + part.start..all.start + part.end);
    let weight = Weight { part, tie: None, ..whole.clone() };
    if let Some(known) = program.weights.iter().position(|known| *known == weight) {
        return WeightId(known as u32);
    }
    program.weights.push(weight);
    WeightId(program.weights.len() as u32 - 1)
}
