//! Builds a program op by op, and checks shapes against the config and the checkpoint.
//!
//! Widths are checked when ops are connected, weights (presence and shape) when they are named.
//! Every error names the config key or the tensor. No tensor data is read.

pub(crate) mod config;
pub(crate) mod encoder_ops;
pub(crate) mod position_table;
pub(crate) mod recurrent;
pub(crate) mod rope_config;
pub(crate) mod source;
pub(crate) mod streams;

use crate::builder::config::Config;
use crate::builder::source::Source;
use crate::error::{ProgramError, Result};
use crate::ir::activation::Activation;
use crate::ir::key_pool::KeyPool;
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::moe::{Experts, Routing};
use crate::ir::number_type::NumberType;
use crate::ir::op::{NormKind, Op, Pairs};
use crate::ir::program::{Program, Purpose, Tap};
use crate::ir::rope::{Rope, RopeId};
use crate::ir::value::{Holds, Rows, Value, ValueId};
use crate::ir::weight::{Matrices, Matrix, Role, Vector, Weight, WeightId};
use serde_json::Value as Json;
use std::collections::HashMap;

/// Builds a program op by op; used by `arch/` and `blocks/`.
pub(crate) struct Builder<'a> {
    pub(crate) config: Config<'a>,
    pub(crate) source: &'a Source,
    pub(crate) program: Program,
    /// Tensors that a checkpoint may contain although the program does not use them.
    pub(crate) unread: Vec<String>,
    names: HashMap<String, WeightId>,
}

/// Operands of an attention op, beside the layer's own facts.
pub(crate) struct Attend {
    pub(crate) q: ValueId,
    /// `None` for shared K/V: an earlier op of the layer writes them.
    pub(crate) k: Option<ValueId>,
    pub(crate) v: Option<ValueId>,
    pub(crate) scale: f64,
    pub(crate) soft_cap: Option<f64>,
    pub(crate) sinks: Option<WeightId>,
    pub(crate) selection: Option<ValueId>,
}

/// Operands of a sparse-attention indexer.
#[derive(Clone, Copy)]
pub(crate) struct IndexerOperands {
    pub(crate) q: ValueId,
    /// The row from which keys are computed, see `Op::SelectKeys`.
    pub(crate) k: ValueId,
    /// Weights of the heads; `None` if all are 1.
    pub(crate) weights: Option<ValueId>,
}

/// Post-processing of the logits: multiplication by `scale`, then soft-capping.
#[derive(Clone, Copy)]
pub(crate) struct Logits {
    pub(crate) scale: f64,
    pub(crate) soft_cap: Option<f64>,
}

impl Logits {
    pub(crate) const PLAIN: Self = Self { scale: 1.0, soft_cap: None };
}

impl<'a> Builder<'a> {
    /// `config` is the source's config with the architecture's defaults filled in.
    pub(crate) fn new(
        source: &'a Source,
        config: &'a Json,
        architecture: &str,
        purpose: Purpose,
    ) -> Result<Self> {
        let config = Config::new(config);
        let program = Program {
            schema_version: Program::SCHEMA,
            architecture: architecture.to_owned(),
            purpose,
            hidden: config.size("hidden_size")?,
            vocab: config.size("vocab_size")?,
            max_positions: config.size("max_position_embeddings")?,
            dtype: number_type(config)?,
            ops: Vec::new(),
            values: Vec::new(),
            weights: Vec::new(),
            ropes: Vec::new(),
            layers: Vec::new(),
            states: Vec::new(),
            taps: Vec::new(),
            shard: None,
            expert_shard: None,
        };
        Ok(Self { config, source, program, unread: Vec::new(), names: HashMap::new() })
    }

    // ---- weights

    /// Declares a weight that the checkpoint must contain; the same name yields the same id.
    pub(crate) fn weight(&mut self, name: &str, shape: &[usize], role: Role) -> Result<WeightId> {
        if let Some(id) = self.names.get(name) {
            return Ok(*id);
        }
        if self.source.tensors.is_some() {
            let found = self.source.shape(name).ok_or_else(|| ProgramError::Missing(name.to_owned()))?;
            check_shape(name, shape, found)?;
        }
        Ok(self.declare(name, shape, role, None))
    }

    /// Declares a weight like [`Self::weight`]. The stored shape may have more or fewer dimensions
    /// of size 1.
    pub(crate) fn weight_with_unit_dims(
        &mut self,
        name: &str,
        shape: &[usize],
        role: Role,
    ) -> Result<WeightId> {
        let without_unit_dims =
            |shape: &[usize]| -> Vec<usize> { shape.iter().copied().filter(|size| *size != 1).collect() };
        let stored = self.source.shape(name);
        let stored = stored.filter(|stored| without_unit_dims(stored) == without_unit_dims(shape));
        self.weight(name, stored.as_deref().unwrap_or(shape), role)
    }

    /// Declares a tied weight: the bytes of `to` are used instead.
    pub(crate) fn tied(&mut self, name: &str, to: WeightId) -> Result<WeightId> {
        let (shape, role) = (self.program.weight(to).shape.clone(), self.program.weight(to).role);
        if let Some(found) = self.source.shape(name) {
            check_shape(name, &shape, found)?;
        }
        Ok(self.declare(name, &shape, role, Some(to)))
    }

    fn declare(&mut self, name: &str, shape: &[usize], role: Role, tie: Option<WeightId>) -> WeightId {
        let id = WeightId(self.program.weights.len() as u32);
        let block = match tie {
            Some(tie) => self.program.weight(tie).block,
            None => self.source.blocks.get(name).copied().unwrap_or(1).max(1),
        };
        self.program.weights.push(Weight {
            name: name.to_owned(),
            shape: shape.to_vec(),
            role,
            tie,
            block,
            part: None,
        });
        self.names.insert(name.to_owned(), id);
        id
    }

    /// `NAME.weight` of shape [outputs, inputs], and `NAME.bias` if `bias` is set.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: bool,
        role: Role,
    ) -> Result<Matrix> {
        let weight = self.weight(&format!("{name}.weight"), &[outputs, inputs], role)?;
        let bias =
            if bias { Some(self.weight(&format!("{name}.bias"), &[outputs], Role::Bias)?) } else { None };
        Ok(Matrix::whole(weight, outputs, inputs).with_bias(bias))
    }

    // ---- ops

    pub(crate) fn width(&self, value: ValueId) -> usize {
        self.program.value(value).width()
    }

    /// Appends an op and the value that it makes.
    fn push(&mut self, holds: Holds, rows: Rows, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        let out = ValueId(self.program.values.len() as u32);
        self.program.values.push(Value { holds, rows });
        self.program.ops.push(op(out));
        out
    }

    /// Appends an op that makes one row of `width` elements per token.
    pub(crate) fn numbers(&mut self, width: usize, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        self.push(Holds::Numbers(width), Rows::Tokens, op)
    }

    /// Appends an op that computes a row of `width` elements from each row of `x`.
    fn push_rowwise(&mut self, x: ValueId, width: usize, op: impl FnOnce(ValueId) -> Op) -> ValueId {
        let rows = self.program.value(x).rows;
        self.push(Holds::Numbers(width), rows, op)
    }

    /// Width of one group (head) of a value; `what` is the config key to blame.
    pub(super) fn group(&self, value: ValueId, groups: usize, what: &str) -> Result<usize> {
        let width = self.width(value);
        if groups > 0 && width.is_multiple_of(groups) {
            Ok(width / groups)
        } else {
            Err(ProgramError::config(what, format!("is {groups}, which does not divide {width}")))
        }
    }

    /// Lets the checkpoint contain tensors that the program does not read.
    pub(crate) fn ignore_tensors(&mut self, is_ignored: impl Fn(&str) -> bool) {
        let names = self.source.tensors.iter().flat_map(|tensors| tensors.keys());
        self.unread.extend(names.filter(|name| is_ignored(name)).cloned());
    }

    /// Fails unless two widths agree; `what` is the config key to blame.
    pub(crate) fn same(&self, found: usize, expected: usize, what: &str) -> Result<()> {
        if found == expected {
            Ok(())
        } else {
            Err(ProgramError::config(what, format!("gives a width of {found}, not {expected}")))
        }
    }

    pub(crate) fn embed(&mut self, scale: f64) -> Result<ValueId> {
        self.embed_from("model.embed_tokens.weight", scale)
    }

    pub(crate) fn embed_from(&mut self, name: &str, scale: f64) -> Result<ValueId> {
        let (vocab, hidden) = (self.program.vocab, self.program.hidden);
        self.embed_table(name, vocab, hidden, scale)
    }

    /// Embedding lookup in a table [height, width].
    pub(crate) fn embed_table(
        &mut self,
        name: &str,
        height: usize,
        width: usize,
        scale: f64,
    ) -> Result<ValueId> {
        let table = self.weight(name, &[height, width], Role::Embedding)?;
        Ok(self.numbers(width, |out| Op::Embed { table, scale: scale as f32, out }))
    }

    pub(crate) fn hidden(&mut self) -> ValueId {
        self.numbers(self.program.hidden, |out| Op::Hidden { out })
    }

    /// RMSNorm over each of `groups` parts, with the weight `NAME.weight`.
    pub(crate) fn rms(&mut self, x: ValueId, name: &str, groups: usize, eps: f64) -> Result<ValueId> {
        self.norm(x, NormKind::Rms, name, groups, eps)
    }

    pub(crate) fn norm(
        &mut self,
        x: ValueId,
        kind: NormKind,
        name: &str,
        groups: usize,
        eps: f64,
    ) -> Result<ValueId> {
        self.norm_by(x, kind, &format!("{name}.weight"), groups, eps)
    }

    /// RMSNorm without a weight, over each of `groups` groups of a row.
    pub(crate) fn unweighted_rms(&mut self, x: ValueId, groups: usize, eps: f64) -> Result<ValueId> {
        self.group(x, groups, "num_attention_heads")?;
        let (kind, eps) = (NormKind::Rms, eps as f32);
        let op = |out| Op::Norm { x, kind, weight: None, bias: None, eps, groups, out };
        Ok(self.numbers(self.width(x), op))
    }

    /// [`Self::norm`] with the complete name of the weight. In the name of a LayerNorm's bias,
    /// `bias` replaces `weight`.
    pub(crate) fn norm_by(
        &mut self,
        x: ValueId,
        kind: NormKind,
        name: &str,
        groups: usize,
        eps: f64,
    ) -> Result<ValueId> {
        let width = self.group(x, groups, "num_attention_heads")?;
        let weight = Some(self.weight(name, &[width], Role::Norm)?);
        let name = name.strip_suffix(".weight").unwrap_or(name);
        let bias = match kind {
            NormKind::Layer => Some(self.weight(&format!("{name}.bias"), &[width], Role::Norm)?),
            NormKind::Rms | NormKind::RmsPlusOne => None,
        };
        let eps = eps as f32;
        Ok(self.numbers(self.width(x), |out| Op::Norm { x, kind, weight, bias, eps, groups, out }))
    }

    /// Multiplies the rows of `x`, which are tokens or pooled vectors, by `matrix`.
    pub(crate) fn linear(&mut self, x: ValueId, matrix: Matrix) -> Result<ValueId> {
        self.same(self.width(x), matrix.inputs, &self.program.weight(matrix.weight).name)?;
        Ok(self.push_rowwise(x, matrix.outputs, |out| Op::Linear { x, matrix, out }))
    }

    pub(crate) fn group_linear(&mut self, x: ValueId, matrices: Matrices) -> Result<ValueId> {
        let (count, first) = (matrices.count, matrices.first);
        self.same(self.width(x), count * first.inputs, &self.program.weight(first.weight).name)?;
        Ok(self.numbers(count * first.outputs, |out| Op::GroupLinear { x, matrices, out }))
    }

    pub(crate) fn slice(&mut self, x: ValueId, groups: usize, start: usize, width: usize) -> Result<ValueId> {
        let group = self.group(x, groups, "num_attention_heads")?;
        if start + width > group {
            return Err(ProgramError::config("head_dim", format!("{start} + {width} is beyond {group}")));
        }
        Ok(self.numbers(groups * width, |out| Op::Slice { x, groups, start, width, out }))
    }

    pub(crate) fn concat(&mut self, a: ValueId, b: ValueId, groups: usize) -> Result<ValueId> {
        self.group(a, groups, "num_attention_heads")?;
        self.group(b, groups, "num_attention_heads")?;
        Ok(self.numbers(self.width(a) + self.width(b), |out| Op::Concat { a, b, groups, out }))
    }

    pub(crate) fn rope(&mut self, rope: Rope) -> RopeId {
        self.program.ropes.push(rope);
        RopeId(self.program.ropes.len() as u32 - 1)
    }

    pub(crate) fn rotary(
        &mut self,
        x: ValueId,
        groups: usize,
        start: usize,
        rope: RopeId,
        pairs: Pairs,
    ) -> Result<ValueId> {
        let group = self.group(x, groups, "num_attention_heads")?;
        let dims = self.program.ropes[rope.0 as usize].dims();
        if start + dims > group {
            let why = format!("is {group}, but RoPE rotates {dims} elements");
            return Err(ProgramError::config("head_dim", why));
        }
        Ok(self.numbers(self.width(x), |out| Op::Rotary { x, groups, start, rope, pairs, out }))
    }

    pub(crate) fn layer(&mut self, facts: LayerFacts) -> LayerId {
        self.program.layers.push(facts);
        LayerId(self.program.layers.len() as u32 - 1)
    }

    /// The sparse-attention indexer. Checks the widths of its operands.
    pub(crate) fn select_keys(
        &mut self,
        operands: IndexerOperands,
        layer: LayerId,
        top_k: usize,
        pool: Option<KeyPool>,
    ) -> Result<ValueId> {
        let IndexerOperands { q, k, weights } = operands;
        let dim = self.program.layers[layer.0 as usize].index_dim;
        self.same(self.width(k), dim, "index_head_dim")?;
        let key_dim = pool.map_or(dim, |pool| pool.combine.key_width(dim));
        match weights {
            Some(weights) => self.same(self.width(q), key_dim * self.width(weights), "index_n_heads")?,
            None => self.same(self.width(q) % key_dim.max(1), 0, "indexer_n_heads")?,
        }
        let op = |out| Op::SelectKeys { q, k, weights, layer, top_k, pool, out };
        Ok(self.push(Holds::Selection, Rows::Tokens, op))
    }

    /// Attention of one layer. Checks the widths of Q, K and V, and that the KV heads divide the
    /// query heads (GQA).
    pub(crate) fn attend(&mut self, layer: LayerId, a: &Attend) -> Result<ValueId> {
        let facts = self.program.layers[layer.0 as usize];
        if let Some(k) = a.k {
            self.same(self.width(k), facts.key_width(), "num_key_value_heads")?;
            self.same(a.v.map_or(0, |v| self.width(v)), facts.value_width(), "num_key_value_heads")?;
        }
        let heads = self.width(a.q) / facts.key_dim.max(1);
        if heads * facts.key_dim != self.width(a.q) || !heads.is_multiple_of(facts.kv_heads.max(1)) {
            let why = format!("is {}, which does not divide {heads} heads", facts.kv_heads);
            return Err(ProgramError::config("num_key_value_heads", why));
        }
        let (q, k, v, selection) = (a.q, a.k, a.v, a.selection);
        let sinks = a.sinks.map(|weight| Vector { weight, offset: 0, stride: 1 });
        let (scale, soft_cap) = (a.scale as f32, a.soft_cap.map(|cap| cap as f32));
        Ok(self.numbers(heads * facts.value_dim, |out| Op::UpdateAndAttend {
            q,
            k,
            v,
            layer,
            scale,
            soft_cap,
            sinks,
            selection,
            out,
        }))
    }

    pub(crate) fn gate(&mut self, gate: ValueId, up: ValueId, activation: Activation) -> Result<ValueId> {
        if self.width(gate) != 1 {
            self.same(self.width(up), self.width(gate), "intermediate_size")?;
        }
        Ok(self.numbers(self.width(up), |out| Op::Gate { gate, up, activation, out }))
    }

    /// `x * factor`; a factor of 1 adds no op.
    pub(crate) fn scale(&mut self, x: ValueId, factor: f64) -> ValueId {
        let factor = factor as f32;
        if factor == 1.0 {
            return x;
        }
        self.numbers(self.width(x), |out| Op::Scale { x, factor, by: None, out })
    }

    /// `x * weight`, with a weight of one element.
    pub(crate) fn scale_by(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let by = Some(self.weight(name, &[1], Role::Norm)?);
        Ok(self.numbers(self.width(x), |out| Op::Scale { x, factor: 1.0, by, out }))
    }

    pub(crate) fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.same(self.width(b), self.width(a), "hidden_size")?;
        Ok(self.numbers(self.width(a), |out| Op::Add { a, b, out }))
    }

    /// MoE routing. Checks that top-k and group-limited routing fit the number of experts.
    pub(crate) fn route(&mut self, scores: ValueId, routing: Routing) -> Result<ValueId> {
        let experts = self.width(scores);
        if let Some(groups) = routing.groups {
            let size = self.group(scores, groups.count, "n_group")?;
            if groups.keep > groups.count || size < 2 || groups.keep * size < routing.top_k {
                let why = format!("is {}: too few or too many of {} groups", groups.keep, groups.count);
                return Err(ProgramError::config("topk_group", why));
            }
        }
        if routing.top_k > experts {
            let why = format!("is {}, of {experts} experts", routing.top_k);
            return Err(ProgramError::config("num_experts_per_tok", why));
        }
        let op = |out| Op::Route { scores, routing, out };
        Ok(self.push(Holds::Routes(routing.top_k), Rows::Tokens, op))
    }

    pub(crate) fn mixture(&mut self, x: ValueId, routes: ValueId, experts: Experts) -> Result<ValueId> {
        self.same(self.width(x), experts.gate.first.inputs, "hidden_size")?;
        let width = experts.down.first.outputs;
        Ok(self.numbers(width, |out| Op::Mixture { x, routes, experts: Box::new(experts), out }))
    }

    pub(crate) fn gather(&mut self, x: ValueId) -> ValueId {
        self.push(Holds::Numbers(self.width(x)), Rows::Sampled, |out| Op::Gather { x, out })
    }

    /// The LM head, over the rows whose logits are wanted.
    pub(crate) fn head(
        &mut self,
        x: ValueId,
        weight: WeightId,
        vocab: usize,
        logits: Logits,
    ) -> Result<ValueId> {
        let matrix = Matrix::whole(weight, vocab, self.program.hidden);
        self.same(self.width(x), matrix.inputs, "hidden_size")?;
        let (scale, soft_cap) = (logits.scale as f32, logits.soft_cap.map(|cap| cap as f32));
        let op = |out| Op::Head { x, matrix, scale, soft_cap, out };
        Ok(self.push(Holds::Numbers(matrix.outputs), Rows::Sampled, op))
    }

    pub(crate) fn tap(&mut self, tap: Tap, value: ValueId) {
        self.program.taps.push((tap, value));
    }
}

fn check_shape(name: &str, expected: &[usize], found: Vec<usize>) -> Result<()> {
    if found == expected {
        Ok(())
    } else {
        Err(ProgramError::Misshapen { name: name.to_owned(), expected: expected.to_vec(), found })
    }
}

/// The number type of activations: `dtype`, or `torch_dtype` in older configs; absent is f32.
fn number_type(config: Config<'_>) -> Result<NumberType> {
    let name = match config.text("dtype")? {
        Some(name) => Some(name),
        None => config.text("torch_dtype")?,
    };
    match name.unwrap_or("float32") {
        "float32" => Ok(NumberType::F32),
        "float16" => Ok(NumberType::F16),
        "bfloat16" => Ok(NumberType::Bf16),
        other => Err(config.bad("dtype", format!("is {other:?}, which is not supported"))),
    }
}
