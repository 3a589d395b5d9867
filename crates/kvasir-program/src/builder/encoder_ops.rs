//! Builder methods for the ops of encoders: position and token-type lookups, LayerNorm with or
//! without a bias, elementwise activations, pooling, and projections of pooled vectors.

use crate::builder::Builder;
use crate::error::{ProgramError, Result};
use crate::ir::elementwise::Elementwise;
use crate::ir::lookup::LookupIndex;
use crate::ir::op::{NormKind, Op};
use crate::ir::pooling::Pooling;
use crate::ir::value::{Holds, Rows, ValueId};
use crate::ir::weight::{Matrix, Role};

impl Builder<'_> {
    /// Appends an op that computes a row of `width` elements from each row of `x`.
    fn push_rowwise(&mut self, x: ValueId, width: usize, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        let rows = self.program.value(x).rows;
        self.push(Holds::Numbers(width), rows, op)
    }

    /// Looks up one row per token in the table `NAME.weight` of `entries` rows.
    pub(crate) fn lookup(&mut self, name: &str, entries: usize, index: LookupIndex) -> Result<ValueId> {
        let hidden = self.program.hidden;
        let table = self.weight(&format!("{name}.weight"), &[entries, hidden], Role::Embedding)?;
        Ok(self.push(Holds::Numbers(hidden), Rows::Tokens, |out| Op::Lookup { table, index, out }))
    }

    /// LayerNorm over the whole row, with the weight `NAME.weight` and the bias `NAME.bias`, if any.
    pub(crate) fn layer_norm(&mut self, x: ValueId, name: &str, bias: bool, eps: f64) -> Result<ValueId> {
        let width = self.width(x);
        let weight = Some(self.weight(&format!("{name}.weight"), &[width], Role::Norm)?);
        let bias =
            if bias { Some(self.weight(&format!("{name}.bias"), &[width], Role::Norm)?) } else { None };
        let (kind, eps, groups) = (NormKind::Layer, eps as f32, 1);
        Ok(self.push_rowwise(x, width, |out| Op::Norm { x, kind, weight, bias, eps, groups, out }))
    }

    pub(crate) fn elementwise(&mut self, x: ValueId, function: Elementwise) -> ValueId {
        self.push_rowwise(x, self.width(x), |out| Op::Elementwise { x, function, out })
    }

    /// Pools each sequence to one row.
    pub(crate) fn pool(&mut self, x: ValueId, pooling: Pooling) -> ValueId {
        self.push(Holds::Numbers(self.width(x)), Rows::Sampled, |out| Op::Pool { x, pooling, out })
    }

    /// Multiplies the rows of `x`, which are tokens or pooled vectors, by `matrix`.
    pub(crate) fn project(&mut self, x: ValueId, matrix: Matrix) -> Result<ValueId> {
        if self.width(x) != matrix.inputs {
            let name = &self.program.weight(matrix.weight).name;
            let why = format!("has {} inputs, but its operand has width {}", matrix.inputs, self.width(x));
            return Err(ProgramError::config(name, why));
        }
        Ok(self.push_rowwise(x, matrix.outputs, |out| Op::Linear { x, matrix, out }))
    }
}
