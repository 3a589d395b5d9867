//! [`Program`]: the frozen op list of one model, with its weight schema, ropes, KV cache layout and
//! recurrent states.
//!
//! SSA form: each op makes one value, and no value is written twice. Ops run in list order.
//! `Program::SCHEMA` versions the serialized form.

use crate::ir::layer::LayerFacts;
use crate::ir::number_type::NumberType;
use crate::ir::op::Op;
use crate::ir::recurrent::StateFacts;
use crate::ir::rope::Rope;
use crate::ir::value::{Holds, Value, ValueId};
use crate::ir::weight::{Weight, WeightId};
use serde::{Deserialize, Serialize};

/// The role of a program in generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The target model.
    Target,
    /// One of its multi-token-prediction (MTP) layers: a draft model for speculative decoding. It
    /// predicts the token after the next from the target's hidden states.
    Prediction {
        /// Index of the prediction layer, from 0.
        index: u32,
    },
    /// An EAGLE-3 draft head: it predicts the next token from [features](Tap::Features) of the
    /// target.
    DraftHead,
}

/// An internal value that callers may request beside the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tap {
    /// The residual stream that enters a layer.
    IntoLayer(u32),
    /// The residual stream that leaves the last layer.
    OutOfLastLayer,
    /// The residual stream after the final norm.
    FinalNorm,
    /// What an EAGLE-3 head continues from: a projection of three layers' inputs; see
    /// [`Program::with_features`].
    Features,
}

/// The frozen op list of one model, with its weights and KV cache layout. Plain data, made once.
///
/// It names no backend, cache or batch: the same program decodes one stream, a ragged batch or a
/// draft tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// [`Program::SCHEMA`] of the crate version that made it.
    pub schema_version: u32,
    /// The architecture's name, as in `config.json`.
    pub architecture: String,
    /// Target model or MTP layer.
    pub purpose: Purpose,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Vocabulary size: rows of the embedding and of the logits.
    pub vocab: usize,
    /// Context length that the model is made for, in tokens.
    pub max_positions: usize,
    /// The number type of activations in the model's reference implementation.
    pub dtype: NumberType,
    /// Ops in execution order.
    pub ops: Vec<Op>,
    /// The values that ops make, by [`ValueId`].
    pub values: Vec<Value>,
    /// The weights it needs from the checkpoint, by [`WeightId`].
    pub weights: Vec<Weight>,
    /// Rotary embeddings, by `RopeId`.
    pub ropes: Vec<Rope>,
    /// KV cache layout of each layer that stores K and V.
    pub layers: Vec<LayerFacts>,
    /// Sizes of the recurrent states, by `StateId`.
    #[serde(default)]
    pub states: Vec<StateFacts>,
    /// Values that callers may inspect.
    pub taps: Vec<(Tap, ValueId)>,
    /// The rank whose shard it computes ([`Program::for_rank`]); `None` for a complete model.
    #[serde(default)]
    pub shard: Option<Shard>,
    /// The expert-parallel replica whose experts it has ([`Program::for_replica`]); `None` if it
    /// has all experts.
    #[serde(default)]
    pub expert_shard: Option<Shard>,
}

/// The rank that a sharded program belongs to: a tensor-parallel rank or an expert-parallel
/// replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The rank or replica, from 0.
    pub rank: usize,
    /// Number of ranks or replicas.
    pub ranks: usize,
}

impl Program {
    /// Version of the op list. A serialized program of another version cannot be run.
    pub const SCHEMA: u32 = 3;

    /// Sliding windows of the layers that may use a ring buffer instead of one row per position.
    /// Layers with an indexer and bidirectional layers are excluded.
    pub fn windows(&self) -> Vec<u32> {
        self.layers.iter().filter_map(LayerFacts::retained_window).collect()
    }

    /// The weight of this id; panics if the id is from another program.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// Follows a tie: the weight whose bytes are used for this one.
    pub fn resolve(&self, id: WeightId) -> WeightId {
        self.weight(id).tie.unwrap_or(id)
    }

    /// The value of this id; panics if the id is from another program.
    pub fn value(&self, id: ValueId) -> Value {
        self.values[id.0 as usize]
    }

    /// Number of routed experts of a mixture op, summed over the ranks; 0 for other ops.
    pub fn routed_experts(&self, op: &Op) -> usize {
        let Op::Mixture { routes, .. } = op else { return 0 };
        let scores = self.ops.iter().find_map(|op| match op {
            Op::Route { scores, out, .. } if out == routes => Some(*scores),
            _ => None,
        });
        scores.map_or(0, |scores| self.value(scores).width())
    }

    /// Experts per token (top-k) of a mixture op; 0 for other ops.
    pub fn top_k(&self, op: &Op) -> usize {
        let Op::Mixture { routes, .. } = op else { return 0 };
        match self.value(*routes).holds {
            Holds::Routes(top_k) => top_k,
            _ => 0,
        }
    }

    /// The logits: the LM head's result, or all ranks' results joined (vocabulary-parallel head).
    pub fn logits(&self) -> Option<ValueId> {
        let head = self.ops.iter().rposition(|op| matches!(op, Op::Head { .. }))?;
        let own = self.ops[head].out();
        let joined = self.ops[head..].iter().find(|op| matches!(op, Op::Collect { x, .. } if *x == own));
        Some(joined.map_or(own, Op::out))
    }

    /// Returns an error if the program is sharded for another number of tensor-parallel ranks.
    pub fn check_ranks(&self, count: usize) -> Result<(), String> {
        match self.ranks() {
            Some(parts) if parts != count => {
                Err(format!("a program for {parts} ranks cannot run among {count}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if the program's experts are sharded for another number of expert-parallel
    /// replicas.
    pub fn check_replicas(&self, count: usize) -> Result<(), String> {
        let shards = self.expert_shard.map_or(1, |shard| shard.ranks);
        if shards == count {
            return Ok(());
        }
        Err(format!("a program whose experts are divided among {shards} replicas cannot run on {count}"))
    }

    /// The number of tensor-parallel ranks it is sharded for; `None` for a complete model.
    pub fn ranks(&self) -> Option<usize> {
        self.shard.map(|shard| shard.ranks)
    }

    /// The LM head's input: final-norm hidden states of the rows whose logits are wanted.
    pub fn head_input(&self) -> Option<ValueId> {
        self.ops.iter().rev().find(|op| matches!(op, Op::Head { .. }))?.inputs().next()
    }

    /// The value that executors return for a row with `Sampling::hidden`: the input of the LM head;
    /// of an encoder, the pooled vector or the scores.
    pub fn hidden_output(&self) -> Option<ValueId> {
        if self.is_encoder() { self.ops.last().map(Op::out) } else { self.head_input() }
    }

    /// Whether the program is an encoder: it pools whole sequences and generates no tokens.
    pub fn is_encoder(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Pool { .. }))
    }

    /// Number of labels (scores per sequence) of the classification head, which follows the
    /// pooling; 0 without one.
    pub fn labels(&self) -> usize {
        match self.ops.last() {
            Some(Op::Linear { matrix, .. }) if self.is_encoder() => matrix.outputs,
            _ => 0,
        }
    }

    /// The value of a tap, if the program has it.
    pub fn tap(&self, tap: Tap) -> Option<ValueId> {
        self.taps.iter().find(|(t, _)| *t == tap).map(|(_, value)| *value)
    }

    /// Whether callers must provide hidden states of the target.
    pub fn takes_hidden(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Hidden { .. }))
    }

    /// KV cache elements per token, over all layers.
    pub fn kv_width(&self) -> usize {
        self.layers.iter().map(LayerFacts::width).sum()
    }

    /// Whether the program has recurrent layers, whose states depend on all earlier tokens.
    pub fn is_recurrent(&self) -> bool {
        !self.states.is_empty()
    }

    /// Multiply-adds of an op's recurrence per token, at any depth; 0 for other ops.
    pub fn recurrent_multiply_adds(&self, op: &Op) -> usize {
        match op {
            Op::ShortConv { kernel, out, .. } => kernel * self.value(*out).width(),
            Op::GatedDelta { form, .. } => form.multiply_adds(),
            Op::SelectiveScan { form, .. } => form.multiply_adds(),
            _ => 0,
        }
    }

    /// f32 elements of all recurrent states of a sequence.
    pub fn state_elements(&self) -> usize {
        self.states.iter().fold(0, |sum, state| state.elements.saturating_add(sum))
    }

    /// A salt for prefix caching: sequences with different salts must not share KV, because
    /// LongRoPE rotated them with other frequencies.
    pub fn prefix_salt(&self, final_len: u32) -> u64 {
        let long = |rope: &Rope| rope.long.as_ref().is_some_and(|long| final_len > long.after);
        u64::from(self.ropes.iter().any(long))
    }
}
