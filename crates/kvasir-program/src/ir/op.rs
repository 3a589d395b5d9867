//! The op set of programs: embedding, norms, GEMM/GEMV, RoPE, attention, activations, MoE routing,
//! collectives.
//!
//! Every op makes one value, whose numbers are f32, and treats each row (token) independently. Only
//! these read other rows:
//!
//! - [`Op::UpdateAndAttend`], [`Op::CompressedAttend`], [`Op::SelectKeys`], through the KV cache,
//! - [`Op::ShortConv`], [`Op::GatedDelta`], [`Op::SelectiveScan`], [`Op::NgramEmbed`], through
//!   recurrent states,
//! - [`Op::Pool`], which reads the rows of its own sequence in the step.
//!
//! Shapes are not stored in ops: they follow from the values and matrices.
//!
//! Backends may fuse ops; the reference semantics are those of `kvasir-plain/src/run.rs`.

use crate::ir::activation::Activation;
use crate::ir::collective::Collective;
use crate::ir::elementwise::Elementwise;
use crate::ir::hyper_connection::HyperForm;
use crate::ir::key_pool::KeyPool;
use crate::ir::layer::LayerId;
use crate::ir::lookup::LookupIndex;
use crate::ir::moe::{Experts, Routing};
use crate::ir::ngram::NgramForm;
use crate::ir::pooling::Pooling;
use crate::ir::recurrent::{DeltaForm, ScanForm, StateId};
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

/// One operation on rows. `groups` splits a row into equal parts (heads) that are treated alike.
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
    /// Lookup by position or token type: `out = table[index]`.
    Lookup {
        /// The table.
        table: WeightId,
        /// The row index.
        index: LookupIndex,
        /// Result.
        out: ValueId,
    },
    /// Embeddings of hashed n-grams: the table rows of all heads, concatenated. The state holds the
    /// last `size - 1` token ids, each plus 1, the nearest first; 0 marks no token.
    NgramEmbed {
        /// Tables and constants.
        form: Box<NgramForm>,
        /// The state that the op reads and writes.
        state: StateId,
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
        /// One weight per element of a group, shared by all groups, or one per element of a row.
        /// `None` if the norm has no weight.
        weight: Option<WeightId>,
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
    /// every visible entry or pool, and selects the best, earlier ones first among equals.
    ///
    /// `score = Σ over heads of weight * max(0, q · k)`.
    SelectKeys {
        /// Indexer queries, one group per head.
        q: ValueId,
        /// The token's own row, `index_dim` of the layer wide: a key, or with a `pool`, the input
        /// of the pool's key; see [`KeyPooling`](crate::ir::key_pool::KeyPooling).
        k: ValueId,
        /// One weight per indexer head; `None` if all are 1.
        weights: Option<ValueId>,
        /// The layer that holds the indexer keys.
        layer: LayerId,
        /// Number of entries to select. With a `pool`, the op selects `top_k / size` complete pools
        /// and all entries that are in no complete pool.
        top_k: usize,
        /// How keys are pooled; `None` if each entry is scored by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pool: Option<KeyPool>,
        /// Result.
        out: ValueId,
    },
    /// Attention: writes K and V, if given, to the layer's KV cache slots, then attends to every
    /// entry that the plan makes visible.
    ///
    /// The plan decides visibility (causal, token tree, shared prefix, whole sequence); the layer's
    /// sliding window and look-ahead restrict it.
    UpdateAndAttend {
        /// Queries. Their head count is a multiple of the KV heads (GQA): consecutive query heads
        /// share a KV head.
        q: ValueId,
        /// Keys. `None` if the layer's K and V are those that an earlier op of this `layer` writes
        /// (shared K/V).
        k: Option<ValueId>,
        /// Values. `None` for shared K/V, and for MLA: the values then are the first `value_dim`
        /// elements of the keys.
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
    /// Attention to a sliding window and to compressed entries (DeepSeek-V4): one softmax over the
    /// keys of the last `window` tokens and the compressed entries of all complete pools that the
    /// query sees. The values are the keys.
    CompressedAttend {
        /// Queries.
        q: ValueId,
        /// The token's key, shared by all heads.
        k: ValueId,
        /// The token's row, `index_dim` of the layer wide, from which compressed entries are
        /// computed; `None` if a `SelectKeys` of the layer writes it.
        row: Option<ValueId>,
        /// Restricts the compressed entries to those of selected pools.
        selection: Option<ValueId>,
        /// The layer whose cache slots are used.
        layer: LayerId,
        /// Softmax scale.
        scale: f32,
        /// Attention sinks, one logit per query head.
        sinks: Vector,
        /// Tokens of the sliding window.
        window: u32,
        /// How compressed entries are computed from rows.
        pool: KeyPool,
        /// Result.
        out: ValueId,
    },
    /// Causal depthwise convolution over the tokens of a sequence:
    /// `out[t] = act(bias + Σ_j weight[j] * x[t - (kernel - 1 - j) * dilation])`, inputs before the
    /// start are 0. The state holds the last `(kernel - 1) * dilation` inputs.
    ShortConv {
        /// Operand.
        x: ValueId,
        /// `kernel` weights per element of a row.
        weight: WeightId,
        /// One bias per element of a row.
        bias: Option<WeightId>,
        /// Number of inputs that an output reads.
        kernel: usize,
        /// Distance in tokens between consecutive inputs of an output.
        #[serde(default = "default_dilation")]
        dilation: usize,
        /// Whether `act` is SiLU; else it is the identity.
        silu: bool,
        /// The state that the op reads and writes.
        state: StateId,
        /// Result.
        out: ValueId,
    },
    /// The gated delta rule (Gated DeltaNet, Kimi Delta Attention). Per value head, with a state S
    /// [key_dim, value_dim] that starts at 0: `S = diag(exp(g)) S`, `S = S + k ⊗ β (v - kᵀ S)`,
    /// `out = qᵀ S`.
    ///
    /// `q = q / sqrt(Σ q² + 1e-6) / sqrt(key_dim)`, `k = k / sqrt(Σ k² + 1e-6)`,
    /// `β = sigmoid(beta)`; [`DecayGate`](crate::ir::recurrent::DecayGate) has the formula of `g`.
    GatedDelta {
        /// Queries, one per key head.
        q: ValueId,
        /// Keys, one per key head.
        k: ValueId,
        /// Values, one per value head.
        v: ValueId,
        /// Decay projection, one element per decay.
        decay: ValueId,
        /// Projection of β, one per value head.
        beta: ValueId,
        /// Heads and decay weights.
        form: DeltaForm,
        /// The state that the op reads and writes.
        state: StateId,
        /// Result, one part per value head.
        out: ValueId,
    },
    /// The selective scan of Mamba-2. Per head, with a state S [head_dim, state_dim] that starts at
    /// 0: `S = a S + (dt x) ⊗ B`, `out = S C + D x`.
    ///
    /// `dt = clamp(softplus(dt + dt_bias))`, `a = exp(-exp(a_log) dt)`.
    SelectiveScan {
        /// Inputs, one part per head.
        x: ValueId,
        /// B, one part per group.
        b: ValueId,
        /// C, one part per group.
        c: ValueId,
        /// Time steps, one per head.
        dt: ValueId,
        /// Heads and their weights.
        form: ScanForm,
        /// The state that the op reads and writes.
        state: StateId,
        /// Result.
        out: ValueId,
    },
    /// Gated activation: `out = act(gate) * up`; see [`Activation`].
    Gate {
        /// Gate projection. A gate of one element applies to the whole row.
        gate: ValueId,
        /// Up projection.
        up: ValueId,
        /// The activation.
        activation: Activation,
        /// Result.
        out: ValueId,
    },
    /// `out = x * factor * by[0]`.
    Scale {
        /// Operand.
        x: ValueId,
        /// A constant factor.
        factor: f32,
        /// A weight of one element; `None` is 1.
        by: Option<WeightId>,
        /// Result.
        out: ValueId,
    },
    /// Elementwise activation: `out = function(x)`.
    Elementwise {
        /// Operand.
        x: ValueId,
        /// The function.
        function: Elementwise,
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
    /// Dot product of each group: `out[g] = a[g] · b[g]`.
    GroupDot {
        /// First operand.
        a: ValueId,
        /// Second operand.
        b: ValueId,
        /// Number of groups, in both operands.
        groups: usize,
        /// Result, one element per group.
        out: ValueId,
    },
    /// The weights of a hyper-connection between parallel residual streams: `pre`, `post` and the
    /// mixing matrix, from their projections; see [`HyperForm`].
    HyperConnection {
        /// The projections.
        x: ValueId,
        /// Scales, biases and iterations.
        form: HyperForm,
        /// Result: `pre` and `post`, one element per stream each, then the mixing matrix row-major.
        out: ValueId,
    },
    /// Weighted sums of streams: `out[k] = Σ_j weights[j * outputs + k] * x[j]`.
    MixStreams {
        /// The streams, of equal width.
        x: ValueId,
        /// One weight per pair of an input and an output stream.
        weights: ValueId,
        /// Number of streams in `x`; `outputs` is the number of weights divided by it.
        streams: usize,
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
    /// Pools each sequence of the step to one row. The step must hold the whole sequence.
    Pool {
        /// Operand, a row per token.
        x: ValueId,
        /// How rows are combined.
        pooling: Pooling,
        /// Result, a row per sequence; each sequence samples at its last token only.
        out: ValueId,
    },
    /// The LM head: hidden states to logits.
    Head {
        /// Operand.
        x: ValueId,
        /// The LM head's matrix.
        matrix: Matrix,
        /// Multiplier of the logits, before the soft-capping.
        scale: f32,
        /// Logit soft-capping: logits l become cap * tanh(l / cap).
        soft_cap: Option<f32>,
        /// Result.
        out: ValueId,
    },
}

/// The dilation of convolutions that are serialized without it.
fn default_dilation() -> usize {
    1
}
