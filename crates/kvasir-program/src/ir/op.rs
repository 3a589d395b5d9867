//! The op set of programs: embedding, norms, GEMM/GEMV, RoPE, attention, activations, MoE routing,
//! collectives.
//!
//! Every op makes one value, whose numbers are f32, and treats each row (token) independently. Only
//! [`Op::UpdateAndAttend`] and [`Op::SelectKeys`] read other rows, through the KV cache. Shapes are
//! not stored in ops: they follow from the values and matrices.
//!
//! Backends may fuse ops; the reference semantics are those of `kvasir-plain/src/run.rs`.

use crate::ir::layer::LayerId;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, Vector, WeightId};
use serde::{Deserialize, Serialize};

/// How the pairs of a rotary embedding (RoPE) lie in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairs {
    /// (i, i + half): the GPT-NeoX layout.
    Half,
    /// (2i, 2i + 1): the GPT-J layout.
    Interleaved,
}

/// The kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// RMSNorm: x / sqrt(mean(x²) + eps) * w.
    Rms,
    /// RMSNorm with an offset weight (Gemma): x / sqrt(mean(x²) + eps) * (1 + w).
    RmsPlusOne,
    /// LayerNorm: (x - mean) / sqrt(variance + eps) * w + bias.
    Layer,
}

/// The gated activation of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// SwiGLU: gate * sigmoid(gate) * up.
    Silu,
    /// GeGLU: gelu(gate) * up, with the tanh approximation of GELU.
    GeluTanh,
    /// Clamped SwiGLU (gpt-oss): with g = min(gate, limit) and u = clamp(up, -limit, limit), g *
    /// sigmoid(alpha * g) * (u + 1).
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Clamping limit.
        limit: f32,
    },
}

/// MoE routing: how a token's experts and their weights follow from the router's scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// How scores become expert weights.
    pub score: Score,
    /// Experts per token, in descending order of weight; the lower index first among equals.
    pub top_k: usize,
    /// Added to the weights for the selection only (DeepSeek's `e_score_correction_bias`).
    pub correction: Option<WeightId>,
    /// Group-limited routing: experts may be chosen only from the best groups.
    pub groups: Option<Groups>,
    /// If set, divide the chosen weights by their sum plus this epsilon.
    pub renormalize: Option<f32>,
    /// Multiplies the final weights (`routed_scaling_factor`).
    pub scale: f32,
}

/// The scoring function of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each score.
    Sigmoid,
}

/// Groups of experts (group-limited routing). A group's score is the sum of its two best corrected
/// weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Number of groups, of equal size.
    pub count: usize,
    /// Number of groups that experts are chosen from.
    pub keep: usize,
}

/// The expert weights of one MoE layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Gate projections: hidden to intermediate.
    pub gate: Matrices,
    /// Up projections: hidden to intermediate.
    pub up: Matrices,
    /// Down projections: intermediate to hidden.
    pub down: Matrices,
    /// The gated activation between them.
    pub activation: Activation,
    /// Router index of the first local expert; 0 unless ranks divide the experts. Routes to experts
    /// of other ranks contribute nothing.
    #[serde(default)]
    pub first: usize,
}

/// Collective operations of tensor parallelism: how the ranks' partial rows become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// All-reduce, accumulated in rank order: each rank multiplied a slice of the inputs (row
    /// parallel).
    Sum,
    /// All-gather in rank order: each rank computed a slice of the outputs (column parallel). Each
    /// of `n` ranks holds `ceil(width / n)` elements of the result; the last ones may hold fewer.
    Join,
}

/// The number type that the model's reference implementation gives an op's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NumberType {
    /// IEEE binary32.
    #[default]
    F32,
    /// IEEE binary16: 5 exponent bits.
    F16,
    /// bfloat16: 8 exponent bits.
    Bf16,
}

/// One operation on rows. Each row is computed by itself; only [`Op::UpdateAndAttend`] and
/// [`Op::SelectKeys`] read other rows, through the KV cache.
///
/// `groups` splits a row into equal parts (heads) that are treated alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Embedding lookup: `out = table[token] * scale`.
    Embed {
        /// The embedding table.
        table: WeightId,
        /// Factor (Gemma: sqrt(hidden)).
        scale: f32,
        /// Result.
        out: ValueId,
    },
    /// Hidden states that the caller provides, one row per token: the target's, as input of an MTP
    /// layer.
    Hidden {
        /// Result.
        out: ValueId,
    },
    /// RMSNorm or LayerNorm over each group.
    Norm {
        /// Operand.
        x: ValueId,
        /// The kind of norm.
        kind: NormKind,
        /// One weight per element of a group; shared by all groups.
        weight: WeightId,
        /// Bias of a LayerNorm.
        bias: Option<WeightId>,
        /// Epsilon, added to the mean square (RMSNorm) or to the variance (LayerNorm).
        eps: f32,
        /// Number of groups (heads); 1 for a norm over the whole row.
        groups: usize,
        /// Result.
        out: ValueId,
    },
    /// Linear projection (GEMM, or GEMV for one row): `out = matrix * x + bias`.
    Linear {
        /// Operand.
        x: ValueId,
        /// Matrix.
        matrix: Matrix,
        /// Result.
        out: ValueId,
    },
    /// Batched projection per group: `out[g] = matrices[g] * x[g]` (absorbed MLA).
    GroupLinear {
        /// Operand, with as many groups as there are matrices.
        x: ValueId,
        /// One matrix per group.
        matrices: Matrices,
        /// Result.
        out: ValueId,
    },
    /// `out[g] = x[g][start .. start + width]` for each group.
    Slice {
        /// Operand.
        x: ValueId,
        /// Number of groups.
        groups: usize,
        /// First element of the slice.
        start: usize,
        /// Number of elements.
        width: usize,
        /// Result.
        out: ValueId,
    },
    /// `out[g] = a[g] ++ b[g]` for each group.
    Concat {
        /// First operand.
        a: ValueId,
        /// Second operand.
        b: ValueId,
        /// Number of groups, in both operands.
        groups: usize,
        /// Result.
        out: ValueId,
    },
    /// RoPE: rotates pairs of each group by angles that depend on the token's position; elements
    /// outside are copied.
    Rotary {
        /// Operand.
        x: ValueId,
        /// Number of groups (heads).
        groups: usize,
        /// First rotated element; the rope's `dims` elements are rotated (partial rotary).
        start: usize,
        /// Frequencies.
        rope: RopeId,
        /// How pairs lie in a head.
        pairs: Pairs,
        /// Result.
        out: ValueId,
    },
    /// The sparse-attention indexer (DeepSeek sparse attention): writes `k` to the cache, scores
    /// every visible entry, and selects the `top_k` best, earlier entries first among equals.
    ///
    /// `score = Σ over heads of weight * max(0, q · k)`.
    SelectKeys {
        /// Indexer queries: one group per head, each `index_dim` of the layer wide.
        q: ValueId,
        /// The token's own indexer key.
        k: ValueId,
        /// One weight per indexer head.
        weights: ValueId,
        /// The layer that holds the indexer keys.
        layer: LayerId,
        /// Number of entries selected.
        top_k: usize,
        /// Result.
        out: ValueId,
    },
    /// Attention: writes K and V to the layer's KV cache slots, then attends to every entry that
    /// the plan makes visible.
    ///
    /// The plan decides visibility (causal, token tree, shared prefix); the layer's sliding window
    /// narrows it.
    UpdateAndAttend {
        /// Queries. Their head count is a multiple of the KV heads (GQA): consecutive query heads
        /// share a KV head.
        q: ValueId,
        /// Keys.
        k: ValueId,
        /// Values. `None` for MLA: the values are the first `value_dim` elements of the keys.
        v: Option<ValueId>,
        /// The layer whose cache slots are used.
        layer: LayerId,
        /// Softmax scale, applied to Q · K.
        scale: f32,
        /// Logit soft-capping: scores s become cap * tanh(s / cap).
        soft_cap: Option<f32>,
        /// Attention sinks: one logit per query head that joins the softmax denominator and
        /// contributes no value. Contiguous (stride 1).
        sinks: Option<Vector>,
        /// Restricts visibility further, to the entries that an indexer selected.
        selection: Option<ValueId>,
        /// Result.
        out: ValueId,
    },
    /// Gated activation: `out = act(gate) * up`; see [`Activation`].
    Gate {
        /// Gate projection.
        gate: ValueId,
        /// Up projection.
        up: ValueId,
        /// The activation.
        activation: Activation,
        /// Result.
        out: ValueId,
    },
    /// Elementwise sum (residual connection).
    Add {
        /// First operand.
        a: ValueId,
        /// Second operand.
        b: ValueId,
        /// Result.
        out: ValueId,
    },
    /// MoE routing: selects experts and their weights.
    Route {
        /// Router scores, one per expert.
        scores: ValueId,
        /// The routing rules.
        routing: Routing,
        /// Result.
        out: ValueId,
    },
    /// MoE feed-forward: the weighted sum of the chosen experts' outputs.
    Mixture {
        /// Operand.
        x: ValueId,
        /// The chosen experts with their weights.
        routes: ValueId,
        /// The expert weights.
        experts: Box<Experts>,
        /// Result.
        out: ValueId,
    },
    /// A collective (tensor parallelism): combines the ranks' partial rows. Without other ranks it
    /// copies.
    Collect {
        /// This rank's partial rows.
        x: ValueId,
        /// All-reduce or all-gather.
        how: Collective,
        /// Result, identical on every rank.
        out: ValueId,
    },
    /// Gathers the rows whose logits are wanted.
    Gather {
        /// Operand.
        x: ValueId,
        /// Result.
        out: ValueId,
    },
    /// The LM head: hidden states to logits.
    Head {
        /// Operand.
        x: ValueId,
        /// The LM head's matrix.
        matrix: Matrix,
        /// Logit soft-capping: logits l become cap * tanh(l / cap).
        soft_cap: Option<f32>,
        /// Result.
        out: ValueId,
    },
}

/// An op's operands as options of references; `as_ref` reads them and `as_mut` replaces them.
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

/// The id of an op's result, as a reference like the op's.
macro_rules! result {
    ($op:ident) => {
        match $op {
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
            | Self::Head { out, .. } => out,
        }
    };
}

impl Op {
    /// The value it makes.
    pub fn out(&self) -> ValueId {
        *result!(self)
    }

    /// Changes the id of its result.
    pub(crate) fn set_out(&mut self, to: ValueId) {
        *result!(self) = to;
    }

    /// Whether each row of the result follows from the same row of the operands alone, whatever
    /// the token's position is. Such ops may run on some of the rows.
    pub(crate) fn is_row_wise(&self) -> bool {
        match self {
            Self::Norm { .. }
            | Self::Linear { .. }
            | Self::GroupLinear { .. }
            | Self::Slice { .. }
            | Self::Concat { .. }
            | Self::Gate { .. }
            | Self::Add { .. }
            | Self::Route { .. }
            | Self::Mixture { .. }
            | Self::Collect { .. } => true,
            Self::Embed { .. }
            | Self::Hidden { .. }
            | Self::Rotary { .. }
            | Self::SelectKeys { .. }
            | Self::UpdateAndAttend { .. }
            | Self::Gather { .. }
            | Self::Head { .. } => false,
        }
    }

    /// The values it reads.
    pub fn inputs(&self) -> impl Iterator<Item = ValueId> {
        operands!(self, as_ref).into_iter().flatten().copied()
    }

    /// Substitutes its operands by `by`.
    pub(crate) fn replace(&mut self, by: impl Fn(ValueId) -> ValueId) {
        operands!(self, as_mut).into_iter().flatten().for_each(|value| *value = by(*value));
    }
}
