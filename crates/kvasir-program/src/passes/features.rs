//! Adds the features of an EAGLE-3 head to a target's program.

use crate::error::{ProgramError, Result};
use crate::ir::op::Op;
use crate::ir::program::{Program, Tap};
use crate::ir::value::{Holds, Rows, Value, ValueId};
use crate::ir::weight::{Matrix, Role, Weight, WeightId};

impl Program {
    /// Name of the weight that projects features. It is the draft head's, and no part of the
    /// target's own arithmetic.
    pub const FEATURES: &'static str = "draft.fc.weight";

    /// The program with [`Tap::Features`]: the inputs of three layers, concatenated and projected
    /// to `width` by the weight [`FEATURES`](Self::FEATURES). Nothing else changes. Fails if a
    /// layer is missing.
    pub fn with_features(&self, layers: [u32; 3], width: usize) -> Result<Self> {
        let mut program = self.clone();
        let input = |layer: u32| {
            let missing = || ProgramError::config("num_hidden_layers", format!("has no layer {layer}"));
            self.tap(Tap::IntoLayer(layer)).ok_or_else(missing)
        };
        let [a, b, c] = [input(layers[0])?, input(layers[1])?, input(layers[2])?];
        if [a, b, c].iter().any(|input| self.value(*input).width() != self.hidden) {
            let why = "is the width of one of several residual streams, which draft heads do not support";
            return Err(ProgramError::config("hidden_size", why));
        }
        let mut value = |width: usize| {
            program.values.push(Value { holds: Holds::Numbers(width), rows: Rows::Tokens });
            ValueId(program.values.len() as u32 - 1)
        };
        let [two, three, out] = [value(2 * self.hidden), value(3 * self.hidden), value(width)];
        let weight = WeightId(program.weights.len() as u32);
        let shape = vec![width, 3 * self.hidden];
        let (name, role) = (Self::FEATURES.into(), Role::Matrix);
        program.weights.push(Weight { name, shape, role, tie: None, block: 1, part: None });
        let matrix = Matrix::whole(weight, width, 3 * self.hidden);
        let ops = [
            Op::Concat { a, b, groups: 1, out: two },
            Op::Concat { a: two, b: c, groups: 1, out: three },
            Op::Linear { x: three, matrix, out },
        ];
        let last = self.ops.iter().rposition(|op| [a, b, c].contains(&op.out()));
        let at = last.map_or(self.ops.len(), |last| last + 1);
        program.ops.splice(at..at, ops);
        program.taps.push((Tap::Features, out));
        Ok(program)
    }
}
