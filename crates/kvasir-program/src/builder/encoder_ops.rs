//! Builder methods for the ops of encoders: position and token-type lookups, LayerNorm with or
//! without a bias, elementwise activations, pooling.

use crate::builder::Builder;
use crate::error::Result;
use crate::ir::elementwise::Elementwise;
use crate::ir::lookup::LookupIndex;
use crate::ir::op::{NormKind, Op};
use crate::ir::pooling::Pooling;
use crate::ir::value::{Holds, Rows, ValueId};
use crate::ir::weight::Role;

impl Builder<'_> {
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
}
