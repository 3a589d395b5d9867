use crate::{LayerId, Matrices, Matrix, RopeId, ValueId, WeightId};
use serde::{Deserialize, Serialize};

/// How rotary pairs lie in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairs {
    /// (i, i + half).
    Half,
    /// (2i, 2i + 1).
    Interleaved,
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// x / sqrt(mean(x²) + eps) * w.
    Rms,
    /// x / sqrt(mean(x²) + eps) * (1 + w).
    RmsPlusOne,
    /// (x - mean) / sqrt(variance + eps) * w + bias.
    Layer,
}

/// What a gate does to its partner.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// gate * sigmoid(gate) * up.
    Silu,
    /// gelu(gate) * up with the tanh form of gelu.
    GeluTanh,
    /// With g = min(gate, limit) and u = clamp(up, -limit, limit): g * sigmoid(alpha * g) * (u + 1).
    ClampedSwiglu {
        /// Steepness.
        alpha: f32,
        /// Largest magnitude that passes.
        limit: f32,
    },
}

/// How a token's experts follow from their scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// How scores become shares.
    pub score: Score,
    /// Experts per token, the best first; of equals the one with the lower number.
    pub top_k: usize,
    /// Added to the shares for the choice only.
    pub correction: Option<WeightId>,
    /// Experts come in groups, of which only the best may be chosen from.
    pub groups: Option<Groups>,
    /// Divide the chosen shares by their sum plus this.
    pub renormalise: Option<f32>,
    /// Multiplies the shares at the end.
    pub scale: f32,
}

/// How scores become shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Each its own.
    Sigmoid,
}

/// Groups of experts. A group's worth is the sum of its two best (corrected) shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// How many, of equal size.
    pub count: usize,
    /// How many of them stay.
    pub keep: usize,
}

/// The experts of one layer, whose results are added up with their shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// From the hidden state to the gate.
    pub gate: Matrices,
    /// From the hidden state to the gate's partner.
    pub up: Matrices,
    /// Back.
    pub down: Matrices,
    /// In between.
    pub activation: Activation,
}

/// How what the ranks of a model have becomes one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Added up, in order of ranks: each had a part of a matrix's inputs.
    Sum,
    /// One behind the other: each had a part of a matrix's outputs.
    Join,
}

/// Number type that an op's result has by the model's contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberType {
    /// 32-bit.
    #[default]
    F32,
    /// 16-bit, 5 exponent bits.
    F16,
    /// 16-bit, 8 exponent bits.
    Bf16,
}

/// One operation on rows. Each row is computed by itself; only [`Op::UpdateAndAttend`] and [`Op::SelectKeys`] see other rows,
/// and those through the cache. `groups` splits a row into so many equal parts (heads), each treated alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// The table's row of each token, times `scale`.
    Embed {
        /// The table.
        table: WeightId,
        /// Factor.
        scale: f32,
        /// Result.
        out: ValueId,
    },
    /// Hidden states that the caller hands in, a row per token: the target's, for a prediction layer.
    Hidden {
        /// Result.
        out: ValueId,
    },
    /// A norm over each group.
    Norm {
        /// Operand.
        x: ValueId,
        /// Which.
        kind: NormKind,
        /// One number per place of a group; all groups share them.
        weight: WeightId,
        /// What a layer norm adds.
        bias: Option<WeightId>,
        /// Keeps the root away from zero.
        eps: f32,
        /// Parts.
        groups: usize,
        /// Result.
        out: ValueId,
    },
    /// A matrix times the row, plus its bias.
    Linear {
        /// Operand.
        x: ValueId,
        /// Matrix.
        matrix: Matrix,
        /// Result.
        out: ValueId,
    },
    /// Matrix number g times group g.
    GroupLinear {
        /// Operand, of as many groups as there are matrices.
        x: ValueId,
        /// One per group.
        matrices: Matrices,
        /// Result.
        out: ValueId,
    },
    /// `width` places of each group from `start` on.
    Slice {
        /// Operand.
        x: ValueId,
        /// Parts.
        groups: usize,
        /// First place.
        start: usize,
        /// Number of places.
        width: usize,
        /// Result.
        out: ValueId,
    },
    /// Each group of `a` followed by the group of `b`.
    Concat {
        /// First operand.
        a: ValueId,
        /// Second operand.
        b: ValueId,
        /// Parts of both.
        groups: usize,
        /// Result.
        out: ValueId,
    },
    /// Turns pairs of places of each group by the token's position; places outside stay.
    Rotary {
        /// Operand.
        x: ValueId,
        /// Parts.
        groups: usize,
        /// First place that turns; as many turn as the rope has dimensions.
        start: usize,
        /// Angles.
        rope: RopeId,
        /// How pairs lie.
        pairs: Pairs,
        /// Result.
        out: ValueId,
    },
    /// The sparse-attention indexer: keeps `k` with the layer's rows, scores every visible entry by
    /// Σ over heads of weight * max(0, q · k), and selects the `top_k` best; of equals the earlier one.
    SelectKeys {
        /// Queries: a group per head, each as wide as the layer's `index_dim`.
        q: ValueId,
        /// The token's own key.
        k: ValueId,
        /// One number per head.
        weights: ValueId,
        /// Where keys are kept.
        layer: LayerId,
        /// How many are selected.
        top_k: usize,
        /// Result.
        out: ValueId,
    },
    /// Keeps K and V in the layer's slots, then attends to what the plan lets each token see. The cache decides what that is; the
    /// layer's window narrows it.
    UpdateAndAttend {
        /// Queries; heads are those of the keys times a whole number, and share key heads in order.
        q: ValueId,
        /// Keys.
        k: ValueId,
        /// Values; without, they are the first `value_dim` places of the keys.
        v: Option<ValueId>,
        /// Which layer's slots.
        layer: LayerId,
        /// Factor of the scores.
        scale: f32,
        /// Scores s become cap * tanh(s / cap).
        soft_cap: Option<f32>,
        /// One logit per query head that joins the softmax and yields nothing.
        sinks: Option<WeightId>,
        /// Narrows what is seen further.
        selection: Option<ValueId>,
        /// Number type of the result by the model's contract; exact arithmetic keeps f32.
        out_dtype: NumberType,
        /// Result.
        out: ValueId,
    },
    /// The activation of a gate and its partner.
    Gate {
        /// Gate.
        gate: ValueId,
        /// Partner.
        up: ValueId,
        /// Which.
        activation: Activation,
        /// Result.
        out: ValueId,
    },
    /// Sum.
    Add {
        /// First operand.
        a: ValueId,
        /// Second operand.
        b: ValueId,
        /// Result.
        out: ValueId,
    },
    /// Which experts, with which shares.
    Route {
        /// A score per expert.
        scores: ValueId,
        /// Rules.
        routing: Routing,
        /// Result.
        out: ValueId,
    },
    /// The experts' results, added up with their shares.
    Mixture {
        /// Operand.
        x: ValueId,
        /// Which experts.
        routes: ValueId,
        /// The experts.
        experts: Box<Experts>,
        /// Result.
        out: ValueId,
    },
    /// What all ranks have of a row. Each runs the same ops over its part of the weights; a lone rank has all of it.
    Collect {
        /// This rank's.
        x: ValueId,
        /// How.
        how: Collective,
        /// Result, the same on every rank.
        out: ValueId,
    },
    /// Only the rows whose logits are wanted.
    Gather {
        /// Operand.
        x: ValueId,
        /// Result.
        out: ValueId,
    },
    /// Logits.
    Head {
        /// Operand.
        x: ValueId,
        /// Matrix.
        matrix: Matrix,
        /// Logits l become cap * tanh(l / cap).
        soft_cap: Option<f32>,
        /// Result.
        out: ValueId,
    },
}

/// The places of an op's operands, to read or to write.
macro_rules! operands {
    ($op:ident, $as_part:ident) => {
        match $op {
            Self::Embed { .. } | Self::Hidden { .. } => [None, None, None, None],
            Self::Norm { x, .. }
            | Self::Linear { x, .. }
            | Self::GroupLinear { x, .. }
            | Self::Slice { x, .. }
            | Self::Rotary { x, .. }
            | Self::Collect { x, .. }
            | Self::Gather { x, .. }
            | Self::Head { x, .. } => [Some(x), None, None, None],
            Self::Route { scores, .. } => [Some(scores), None, None, None],
            Self::Concat { a, b, .. } | Self::Add { a, b, .. } => [Some(a), Some(b), None, None],
            Self::SelectKeys { q, k, weights, .. } => [Some(q), Some(k), Some(weights), None],
            Self::UpdateAndAttend { q, k, v, selection, .. } => {
                [Some(q), Some(k), v.$as_part(), selection.$as_part()]
            }
            Self::Gate { gate, up, .. } => [Some(gate), Some(up), None, None],
            Self::Mixture { x, routes, .. } => [Some(x), Some(routes), None, None],
        }
    };
}

impl Op {
    /// What it yields.
    pub fn out(&self) -> ValueId {
        match self {
            Self::Embed { out, .. }
            | Self::Hidden { out }
            | Self::Norm { out, .. }
            | Self::Linear { out, .. }
            | Self::GroupLinear { out, .. }
            | Self::Slice { out, .. }
            | Self::Concat { out, .. }
            | Self::Rotary { out, .. }
            | Self::SelectKeys { out, .. }
            | Self::UpdateAndAttend { out, .. }
            | Self::Gate { out, .. }
            | Self::Add { out, .. }
            | Self::Route { out, .. }
            | Self::Mixture { out, .. }
            | Self::Collect { out, .. }
            | Self::Gather { out, .. }
            | Self::Head { out, .. } => *out,
        }
    }

    /// What it takes.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        operands!(self, as_ref).into_iter().flatten().copied()
    }

    /// Takes other values in the place of those it takes.
    pub(crate) fn replace(&mut self, by: impl Fn(ValueId) -> ValueId) {
        operands!(self, as_mut).into_iter().flatten().for_each(|value| *value = by(*value));
    }
}
