//! MLA (multi-head latent attention) with absorbed projections, with or without RoPE, and the
//! sparse-attention indexer.
//!
//! Per head, with latent c, up-projections W_uk and W_uv, and rotary parts r:
//!
//! ```text
//! score = q · (W_uk c) + q_r · k_r = (W_uk^T q) · c + q_r · k_r
//! out   = W_uv (sum over j of P_j c_j)
//! ```
//!
//! So the KV cache holds one row (c, k_r) per token, shared by all heads (MQA). W_uk is applied to
//! the queries and W_uv to the result, as per-head matrices (`GroupLinear`).

use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Attend, Builder, IndexerOperands};
use crate::error::Result;
use crate::ir::key_pool::{KeyPool, KeyPooling};
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::op::{NormKind, Pairs};
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, Role};

/// MLA in its absorbed form.
///
/// The KV cache holds one row per token, shared by all heads: the normed latent and the shared key
/// part, to which RoPE is applied if the model has it.
#[derive(Clone, Copy)]
pub(crate) struct Latent {
    heads: usize,
    /// Rank of the low-rank query projection; `None` if it is one matrix.
    q_rank: Option<usize>,
    rank: usize,
    /// Elements of a query or key head without RoPE (`qk_nope_head_dim`).
    nope_dim: usize,
    /// Elements of the key part that all heads share (`qk_rope_head_dim`). It has RoPE if the model
    /// has any.
    rope_dim: usize,
    value: usize,
    bias: bool,
    scale: f64,
    pairs: Pairs,
    /// Epsilon of the norms of the query and KV latents.
    eps: f64,
    indexer: Option<Indexer>,
}

/// The lightning indexer of DeepSeek-V3.2 (sparse attention).
#[derive(Clone, Copy)]
struct Indexer {
    heads: usize,
    dim: usize,
    top_k: usize,
    /// Tokens per key pool (GLM-5); `None` if each token is scored by itself.
    pool: Option<usize>,
}

impl Indexer {
    /// Elements of a row that the KV cache stores: a key, and a gate per channel if keys are
    /// pooled.
    fn row_width(self) -> usize {
        if self.pool.is_some() { 2 * self.dim } else { self.dim }
    }
}

/// Epsilon of the norms inside MLA; `rms_norm_eps` applies to the other norms only.
const EPS: f64 = 1e-6;

impl Latent {
    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        let (nope_dim, rope_dim) = (config.size("qk_nope_head_dim")?, config.count("qk_rope_head_dim")?);
        let factor = RopeConfig::read(config)?.score_factor()?;
        let interleaved = config.flag_or("rope_interleave", true)?;
        Ok(Self {
            heads: config.size("num_attention_heads")?,
            q_rank: config.opt_size("q_lora_rank")?,
            rank: config.size("kv_lora_rank")?,
            nope_dim,
            rope_dim,
            value: config.size("v_head_dim")?,
            bias: config.flag_or("attention_bias", false)?,
            scale: ((nope_dim + rope_dim) as f64).powf(-0.5) * factor,
            pairs: if interleaved { Pairs::Interleaved } else { Pairs::Half },
            eps: EPS,
            indexer: None,
        })
    }

    /// Adds the sparse-attention indexer.
    pub(crate) fn with_indexer(self, config: Config<'_>) -> Result<Self> {
        let indexer = Indexer {
            heads: config.size("index_n_heads")?,
            dim: config.size("index_head_dim")?,
            top_k: config.size("index_topk")?,
            pool: None,
        };
        if self.q_rank.is_none() {
            return Err(config.bad("q_lora_rank", "is missing, and the indexer needs it"));
        }
        Ok(Self { indexer: Some(indexer), ..self })
    }

    /// Adds a sparse-attention indexer that scores pools of `index_kpool` tokens. It has no RoPE.
    pub(crate) fn with_pooled_indexer(self, config: Config<'_>) -> Result<Self> {
        let latent = self.with_indexer(config)?;
        let size = config.size("index_kpool")?;
        let top_k = config.size("index_topk")?;
        if !top_k.is_multiple_of(size) {
            let why = format!("is {top_k}, not a multiple of {size} (index_kpool)");
            return Err(config.bad("index_topk", why));
        }
        let pool = |indexer| Indexer { pool: Some(size), ..indexer };
        Ok(Self { indexer: latent.indexer.map(pool), ..latent })
    }

    /// Replaces the epsilon of the norms of the latents.
    pub(crate) fn with_eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// Adds the RoPE of the shared key part to the program.
    pub(crate) fn rope(&self, b: &mut Builder<'_>) -> Result<RopeId> {
        if self.rope_dim == 0 {
            return Err(b.config.bad("qk_rope_head_dim", "is 0 or missing"));
        }
        let rope = RopeConfig::read(b.config)?.rope(self.rope_dim)?;
        Ok(b.rope(rope))
    }

    pub(crate) fn build(
        &self,
        b: &mut Builder<'_>,
        layer: usize,
        x: ValueId,
        rope: Option<RopeId>,
    ) -> Result<ValueId> {
        let p = format!("model.layers.{layer}.self_attn.");
        let id = b.layer(LayerFacts {
            kv_heads: 1,
            key_dim: self.rank + self.rope_dim,
            value_dim: self.rank,
            value_in_key: true,
            window: None,
            lookahead: 0,
            index_dim: self.indexer.map_or(0, Indexer::row_width),
        });
        let (q_latent, q) = self.queries(b, &p, x)?;
        let q = match rope {
            Some(rope) => b.rotary(q, self.heads, self.nope_dim, rope, self.pairs)?,
            None => q,
        };
        let k = self.keys(b, &p, x, rope)?;
        let selection = match (self.indexer, q_latent) {
            (Some(indexer), Some(latent)) => Some(indexer.build(b, &p, x, latent, id, rope)?),
            _ => None,
        };
        let (expand_k, expand_v) = self.expansions(b, &p)?;
        let q_nope = b.slice(q, self.heads, 0, self.nope_dim)?;
        let absorbed = b.group_linear(q_nope, expand_k)?;
        let q = if self.rope_dim == 0 {
            absorbed
        } else {
            let q_rope = b.slice(q, self.heads, self.nope_dim, self.rope_dim)?;
            b.concat(absorbed, q_rope, self.heads)?
        };
        let attend =
            Attend { q, k: Some(k), v: None, scale: self.scale, soft_cap: None, sinks: None, selection };
        let latents = b.attend(id, &attend)?;
        let y = b.group_linear(latents, expand_v)?;
        let (hidden, width) = (b.program.hidden, self.heads * self.value);
        let out = b.matrix(&format!("{p}o_proj"), hidden, width, self.bias, Role::Matrix)?;
        b.linear(y, out)
    }

    /// The query latent (if the projection is low-rank) and the queries.
    fn queries(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<(Option<ValueId>, ValueId)> {
        let (hidden, width) = (b.program.hidden, self.heads * (self.nope_dim + self.rope_dim));
        let Some(rank) = self.q_rank else {
            let matrix = b.matrix(&format!("{p}q_proj"), width, hidden, false, Role::Matrix)?;
            return Ok((None, b.linear(x, matrix)?));
        };
        let down = b.matrix(&format!("{p}q_a_proj"), rank, hidden, self.bias, Role::Matrix)?;
        let latent = b.linear(x, down)?;
        let latent = b.rms(latent, &format!("{p}q_a_layernorm"), 1, self.eps)?;
        let up = b.matrix(&format!("{p}q_b_proj"), width, rank, false, Role::Matrix)?;
        Ok((Some(latent), b.linear(latent, up)?))
    }

    /// The row that the KV cache stores: normed latent and shared key part.
    fn keys(&self, b: &mut Builder<'_>, p: &str, x: ValueId, rope: Option<RopeId>) -> Result<ValueId> {
        let (hidden, width) = (b.program.hidden, self.rank + self.rope_dim);
        let matrix = b.matrix(&format!("{p}kv_a_proj_with_mqa"), width, hidden, self.bias, Role::Matrix)?;
        let both = b.linear(x, matrix)?;
        let latent = b.slice(both, 1, 0, self.rank)?;
        let latent = b.rms(latent, &format!("{p}kv_a_layernorm"), 1, self.eps)?;
        if self.rope_dim == 0 {
            return Ok(latent);
        }
        let k_rope = b.slice(both, 1, self.rank, self.rope_dim)?;
        let k_rope = match rope {
            Some(rope) => b.rotary(k_rope, 1, 0, rope, self.pairs)?,
            None => k_rope,
        };
        b.concat(latent, k_rope, 1)
    }

    /// Per head: W_uk^T (query to latent) and W_uv (latent to value), as views into `kv_b_proj`.
    fn expansions(&self, b: &mut Builder<'_>, p: &str) -> Result<(Matrices, Matrices)> {
        let (count, rank, nope_dim, value) = (self.heads, self.rank, self.nope_dim, self.value);
        let all = |first: Matrix, offset_stride: usize| Matrices {
            count,
            first,
            weight_stride: 0,
            offset_stride,
            bias_stride: 0,
        };
        if b.source.layout.split_kv_b {
            let k = b.weight(&format!("{p}k_b_proj.weight"), &[count, rank, nope_dim], Role::Matrix)?;
            let v = b.weight(&format!("{p}v_b_proj.weight"), &[count, value, rank], Role::Matrix)?;
            let (k, v) = (Matrix::whole(k, rank, nope_dim), Matrix::whole(v, value, rank));
            return Ok((all(k, rank * nope_dim), all(v, value * rank)));
        }
        let rows = nope_dim + value;
        let weight = b.weight(&format!("{p}kv_b_proj.weight"), &[count * rows, rank], Role::Matrix)?;
        let k = Matrix {
            weight,
            offset: 0,
            outputs: rank,
            inputs: nope_dim,
            output_stride: 1,
            input_stride: rank,
            bias: None,
        };
        let v = Matrix { offset: nope_dim * rank, ..Matrix::whole(weight, value, rank) };
        Ok((all(k, rows * rank), all(v, rows * rank)))
    }
}

impl Indexer {
    /// Builds the indexer. Its rotary part, if any, is first in a head (last in the attention's
    /// heads), and its pairs are always (i, i + half).
    fn build(
        self,
        b: &mut Builder<'_>,
        p: &str,
        x: ValueId,
        q_latent: ValueId,
        layer: LayerId,
        rope: Option<RopeId>,
    ) -> Result<ValueId> {
        let apply_rope = |b: &mut Builder<'_>, x, heads| match rope {
            Some(rope) => b.rotary(x, heads, 0, rope, Pairs::Half),
            None => Ok(x),
        };
        let (hidden, rank, width) = (b.program.hidden, b.width(q_latent), self.heads * self.dim);
        let wq = b.matrix(&format!("{p}indexer.wq_b"), width, rank, false, Role::Matrix)?;
        let q = b.linear(q_latent, wq)?;
        let q = apply_rope(b, q, self.heads)?;
        let wk = b.matrix(&format!("{p}indexer.wk"), self.dim, hidden, false, Role::Matrix)?;
        let k = b.linear(x, wk)?;
        let k = b.norm(k, NormKind::Layer, &format!("{p}indexer.k_norm"), 1, EPS)?;
        let k = apply_rope(b, k, 1)?;
        // A positive constant factor on all scores would not change the top-k, so none is applied.
        let weights =
            b.matrix(&format!("{p}indexer.weights_proj"), self.heads, hidden, false, Role::Router)?;
        let weights = b.linear(x, weights)?;
        let Some(size) = self.pool else {
            let operands = IndexerOperands { q, k, weights: Some(weights) };
            return b.select_keys(operands, layer, self.top_k, None);
        };
        let gate = format!("{p}indexer.index_kpool_compress_gate");
        let gate = b.weight(&gate, &[self.dim, hidden], Role::Router)?;
        let gate = b.linear(x, Matrix::whole(gate, self.dim, hidden))?;
        let row = b.concat(k, gate, 1)?;
        let bias = format!("{p}indexer.index_kpool_compress_ape");
        let combine = KeyPooling::Gated { bias: b.weight(&bias, &[size, self.dim], Role::Router)? };
        let operands = IndexerOperands { q, k: row, weights: Some(weights) };
        b.select_keys(operands, layer, self.top_k, Some(KeyPool { size, combine }))
    }
}
