//! Operands and result of an op, its recurrent state, and whether it is row-wise.

use crate::ir::op::Op;
use crate::ir::recurrent::StateId;
use crate::ir::value::ValueId;

/// An op's operands as options of references; `as_ref` reads them and `as_mut` replaces them.
macro_rules! operands {
    ($op:ident, $as_part:ident) => {
        match $op {
            Self::Embed { .. } | Self::Lookup { .. } | Self::NgramEmbed { .. } | Self::Hidden { .. } => {
                [None, None, None, None, None]
            }
            Self::Norm { x, .. }
            | Self::Linear { x, .. }
            | Self::GroupLinear { x, .. }
            | Self::Slice { x, .. }
            | Self::Rotary { x, .. }
            | Self::ShortConv { x, .. }
            | Self::Scale { x, .. }
            | Self::Collect { x, .. }
            | Self::Elementwise { x, .. }
            | Self::HyperConnection { x, .. }
            | Self::Pool { x, .. }
            | Self::Gather { x, .. }
            | Self::Head { x, .. } => [Some(x), None, None, None, None],
            Self::Route { scores, .. } => [Some(scores), None, None, None, None],
            Self::Concat { a, b, .. } | Self::GroupDot { a, b, .. } | Self::Add { a, b, .. } => {
                [Some(a), Some(b), None, None, None]
            }
            Self::SelectKeys { q, k, weights, .. } => [Some(q), Some(k), weights.$as_part(), None, None],
            Self::UpdateAndAttend { q, k, v, selection, .. } => {
                [Some(q), k.$as_part(), v.$as_part(), selection.$as_part(), None]
            }
            Self::CompressedAttend { q, k, row, selection, .. } => {
                [Some(q), Some(k), row.$as_part(), selection.$as_part(), None]
            }
            Self::GatedDelta { q, k, v, decay, beta, .. } => {
                [Some(q), Some(k), Some(v), Some(decay), Some(beta)]
            }
            Self::SelectiveScan { x, b, c, dt, .. } => [Some(x), Some(b), Some(c), Some(dt), None],
            Self::Gate { gate, up, .. } => [Some(gate), Some(up), None, None, None],
            Self::MixStreams { x, weights, .. } => [Some(x), Some(weights), None, None, None],
            Self::Mixture { x, routes, .. } => [Some(x), Some(routes), None, None, None],
        }
    };
}

/// The id of an op's result, as a reference like the op's.
macro_rules! result {
    ($op:ident) => {
        match $op {
            Self::Embed { out, .. }
            | Self::Lookup { out, .. }
            | Self::NgramEmbed { out, .. }
            | Self::Hidden { out }
            | Self::Norm { out, .. }
            | Self::Linear { out, .. }
            | Self::GroupLinear { out, .. }
            | Self::Slice { out, .. }
            | Self::Concat { out, .. }
            | Self::Rotary { out, .. }
            | Self::SelectKeys { out, .. }
            | Self::UpdateAndAttend { out, .. }
            | Self::CompressedAttend { out, .. }
            | Self::ShortConv { out, .. }
            | Self::GatedDelta { out, .. }
            | Self::SelectiveScan { out, .. }
            | Self::Gate { out, .. }
            | Self::Scale { out, .. }
            | Self::Elementwise { out, .. }
            | Self::GroupDot { out, .. }
            | Self::HyperConnection { out, .. }
            | Self::MixStreams { out, .. }
            | Self::Pool { out, .. }
            | Self::Add { out, .. }
            | Self::Route { out, .. }
            | Self::Mixture { out, .. }
            | Self::Collect { out, .. }
            | Self::Gather { out, .. }
            | Self::Head { out, .. } => out,
        }
    };
}

impl Op {
    /// The result of the op.
    pub fn out(&self) -> ValueId {
        *result!(self)
    }

    /// Changes the id of its result.
    pub(crate) fn set_out(&mut self, to: ValueId) {
        *result!(self) = to;
    }

    /// Whether each row of the result depends only on the same row of the operands, and not on the
    /// token's position. Such ops may run on a subset of the rows.
    pub(crate) fn is_row_wise(&self) -> bool {
        match self {
            Self::Norm { .. }
            | Self::Linear { .. }
            | Self::GroupLinear { .. }
            | Self::Slice { .. }
            | Self::Concat { .. }
            | Self::Gate { .. }
            | Self::Scale { .. }
            | Self::Elementwise { .. }
            | Self::GroupDot { .. }
            | Self::HyperConnection { .. }
            | Self::MixStreams { .. }
            | Self::Add { .. }
            | Self::Mixture { .. }
            | Self::Collect { .. } => true,
            // Routing by token id needs the ids of all rows.
            Self::Route { routing, .. } => routing.token_table.is_none(),
            Self::Embed { .. }
            | Self::Lookup { .. }
            | Self::NgramEmbed { .. }
            | Self::Hidden { .. }
            | Self::Pool { .. }
            | Self::Rotary { .. }
            | Self::SelectKeys { .. }
            | Self::UpdateAndAttend { .. }
            | Self::CompressedAttend { .. }
            | Self::ShortConv { .. }
            | Self::GatedDelta { .. }
            | Self::SelectiveScan { .. }
            | Self::Gather { .. }
            | Self::Head { .. } => false,
        }
    }

    /// The operands of the op.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        operands!(self, as_ref).into_iter().flatten().copied()
    }

    /// The recurrent state that the op reads and writes.
    pub fn state(&self) -> Option<StateId> {
        match self {
            Self::ShortConv { state, .. }
            | Self::GatedDelta { state, .. }
            | Self::NgramEmbed { state, .. }
            | Self::SelectiveScan { state, .. } => Some(*state),
            _ => None,
        }
    }

    /// Replaces the recurrent state that the op reads and writes; other ops are unchanged.
    pub(crate) fn set_state(&mut self, to: StateId) {
        if let Self::ShortConv { state, .. }
        | Self::GatedDelta { state, .. }
        | Self::NgramEmbed { state, .. }
        | Self::SelectiveScan { state, .. } = self
        {
            *state = to;
        }
    }

    /// Replaces each operand `v` with `by(v)`.
    pub(crate) fn replace(&mut self, by: impl Fn(ValueId) -> ValueId) {
        operands!(self, as_mut).into_iter().flatten().for_each(|value| *value = by(*value));
    }
}
