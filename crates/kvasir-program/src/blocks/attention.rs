//! Multi-head and grouped-query attention (GQA): QKV projections, optional QK-norm, RoPE, KV cache
//! attention, output projection.

use crate::blocks::block_indexer::BlockIndexer;
use crate::blocks::decoder::Norms;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Attend, Builder};
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::layer::LayerFacts;
use crate::ir::op::Pairs;
use crate::ir::rope::{Rope, RopeId};
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// The ropes of a layer's queries and keys; `None` leaves them as they are.
#[derive(Clone, Copy)]
pub(crate) struct Ropes {
    pub(crate) q: Option<RopeId>,
    pub(crate) k: Option<RopeId>,
}

impl From<RopeId> for Ropes {
    fn from(rope: RopeId) -> Self {
        Some(rope).into()
    }
}

impl From<Option<RopeId>> for Ropes {
    fn from(rope: Option<RopeId>) -> Self {
        Self { q: rope, k: rope }
    }
}

/// A GQA attention block.
#[derive(Clone, Copy)]
pub(crate) struct Attention {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Biases on the query, key and value projections.
    pub(crate) bias: bool,
    /// A bias on the output projection.
    pub(crate) out_bias: bool,
    /// Fused QKV: one matrix with all query heads, then all key heads, then all value heads.
    pub(crate) fused: bool,
    /// QK-norm: a norm over each query and key head.
    pub(crate) norms: Option<Norms>,
    /// QK-norm over all heads together instead.
    pub(crate) wide_norms: bool,
    /// Attention sinks: a learned logit per query head.
    pub(crate) sinks: bool,
    /// Softmax scale.
    pub(crate) scale: f64,
    /// Output gate: the query projection has a gate after each head's query, and the attention
    /// output is multiplied by its sigmoid.
    pub(crate) gated: bool,
    /// Multiplier of the keys, before RoPE.
    pub(crate) key_factor: f64,
    /// Tensor names of the QK-norms and of the output projection.
    pub(crate) names: Names,
    /// Selects the blocks of tokens that are attended to; `None` for dense attention.
    pub(crate) indexer: Option<BlockIndexer>,
}

/// Tensor names that differ between architectures.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) q_norm: &'static str,
    pub(crate) k_norm: &'static str,
    pub(crate) output: &'static str,
}

impl Names {
    const DEFAULT: Self = Self { q_norm: "q_norm", k_norm: "k_norm", output: "o_proj" };
}

impl Attention {
    /// Reads head counts and widths; no biases, no QK-norm, no sinks, scale 1 / sqrt(head_dim).
    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        let heads = config.size("num_attention_heads")?;
        let head_dim = match config.opt_size("head_dim")? {
            Some(dim) => dim,
            None => config.size("hidden_size")? / heads,
        };
        Ok(Self {
            heads,
            kv_heads: config.size_or("num_key_value_heads", heads)?,
            head_dim,
            bias: false,
            out_bias: false,
            fused: false,
            norms: None,
            wide_norms: false,
            sinks: false,
            scale: (head_dim as f64).powf(-0.5),
            gated: false,
            key_factor: 1.0,
            names: Names::DEFAULT,
            indexer: None,
        })
    }

    /// The rope of its heads; `share` is the default of `partial_rotary_factor`.
    pub(crate) fn rope(&self, b: &mut Builder<'_>, config: RopeConfig<'_>, share: f64) -> Result<RopeId> {
        let rope = config.rope(config.dims(self.head_dim, share)?)?;
        Ok(b.rope(rope))
    }

    /// The same where the amplitude of queries grows with the position, which takes a rope over
    /// whole heads.
    pub(crate) fn tempered_ropes(&self, b: &mut Builder<'_>, config: RopeConfig<'_>) -> Result<Ropes> {
        let k = self.rope(b, config, 1.0)?;
        let Some(temperature) = config.temperature()? else { return Ok(k.into()) };
        let rope = Rope { temperature: Some(temperature), ..b.program.ropes[k.0 as usize].clone() };
        if rope.dims() != self.head_dim {
            let why = format!("leaves {} of {} places unscaled", self.head_dim - rope.dims(), self.head_dim);
            return Err(b.config.bad("partial_rotary_factor", why));
        }
        Ok(Ropes { q: Some(b.rope(rope)), k: Some(k) })
    }

    /// Builds the attention of one layer, from the normed input to the output projection.
    pub(crate) fn build(
        &self,
        b: &mut Builder<'_>,
        layer: usize,
        x: ValueId,
        ropes: impl Into<Ropes>,
        window: Option<u32>,
    ) -> Result<ValueId> {
        self.build_at(b, &format!("model.layers.{layer}.self_attn."), x, ropes, window)
    }

    /// The same with the prefix of the tensor names.
    pub(crate) fn build_at(
        &self,
        b: &mut Builder<'_>,
        p: &str,
        x: ValueId,
        ropes: impl Into<Ropes>,
        window: Option<u32>,
    ) -> Result<ValueId> {
        let ropes = ropes.into();
        let (q, k, v) = self.project(b, p, x)?;
        let (q, gate) = if self.gated {
            let (heads, dim) = (self.heads, self.head_dim);
            (b.slice(q, heads, 0, dim)?, Some(b.slice(q, heads, dim, dim)?))
        } else {
            (q, None)
        };
        let k = b.scale(k, self.key_factor);
        let pairs = if b.source.layout.interleaved_qk { Pairs::Interleaved } else { Pairs::Half };
        // The norm directly precedes the rotation that reads it, so that a backend can fuse both.
        let mut place = |x: ValueId, name: &str, heads: usize, rope: Option<RopeId>| {
            let groups = if self.wide_norms { 1 } else { heads };
            let x = match self.norms {
                Some(norms) => norms.heads(b, x, &format!("{p}{name}"), groups)?,
                None => x,
            };
            match rope {
                Some(rope) => b.rotary(x, heads, 0, rope, pairs),
                None => Ok(x),
            }
        };
        let (q, k) = (
            place(q, self.names.q_norm, self.heads, ropes.q)?,
            place(k, self.names.k_norm, self.kv_heads, ropes.k)?,
        );
        let sinks =
            if self.sinks { Some(b.weight(&format!("{p}sinks"), &[self.heads], Role::Sinks)?) } else { None };
        let id = b.layer(LayerFacts {
            kv_heads: self.kv_heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            value_in_key: false,
            window,
            lookahead: 0,
            index_dim: self.indexer.map_or(0, |indexer| indexer.dim),
        });
        let selection = match (self.indexer, ropes.q) {
            (Some(indexer), Some(rope)) => Some(indexer.build(b, p, x, id, rope)?),
            _ => None,
        };
        let attend =
            Attend { q, k: Some(k), v: Some(v), scale: self.scale, soft_cap: None, sinks, selection };
        let y = b.attend(id, &attend)?;
        let y = match gate {
            Some(gate) => b.gate(gate, y, Activation::Sigmoid)?,
            None => y,
        };
        let (hidden, width) = (b.program.hidden, self.heads * self.head_dim);
        let out =
            b.matrix(&format!("{p}{}", self.names.output), hidden, width, self.out_bias, Role::Matrix)?;
        b.linear(y, out)
    }

    fn project(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<(ValueId, ValueId, ValueId)> {
        let inputs = b.width(x);
        let (wide, narrow) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        if self.fused {
            let all = wide + 2 * narrow;
            let matrix = b.matrix(&format!("{p}qkv_proj"), all, inputs, self.bias, Role::Matrix)?;
            let all = b.linear(x, matrix)?;
            let (q, k) = (b.slice(all, 1, 0, wide)?, b.slice(all, 1, wide, narrow)?);
            return Ok((q, k, b.slice(all, 1, wide + narrow, narrow)?));
        }
        let mut one = |name: &str, width: usize| {
            let matrix = b.matrix(&format!("{p}{name}"), width, inputs, self.bias, Role::Matrix)?;
            b.linear(x, matrix)
        };
        let wide = if self.gated { 2 * wide } else { wide };
        Ok((one("q_proj", wide)?, one("k_proj", narrow)?, one("v_proj", narrow)?))
    }
}
