//! The attention of DeepSeek-V4 (MQA). The one key of a token is also its value. RoPE rotates the
//! last elements of queries and keys; the inverse rotation is applied to the result.
//!
//! Every layer has a sliding window. Layers with a compression ratio also attend to compressed
//! entries, each computed from a pool of consecutive tokens: to all entries (HCA), or to those that
//! an indexer selects (CSA).

use crate::blocks::decoder::Norms;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Attend, Builder, IndexerOperands};
use crate::error::Result;
use crate::ir::key_pool::{KeyPool, KeyPooling};
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::op::{Op, Pairs};
use crate::ir::rope::{Rope, RopeId};
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, Role, Vector, WeightId};

/// The compression ratio of CSA layers: their entries overlap, and an indexer selects them.
const INDEXED_RATIO: usize = 4;

/// Number of parts of the values and gates of a token: 2 if entries overlap.
fn entry_parts(ratio: usize) -> usize {
    if ratio == INDEXED_RATIO { 2 } else { 1 }
}

/// The attention of all layers.
pub(crate) struct CompressedAttention {
    heads: usize,
    head_dim: usize,
    q_rank: usize,
    rotated: usize,
    groups: usize,
    out_rank: usize,
    window: u32,
    norms: Norms,
    /// Tokens per compressed entry, by layer; 0 for layers without compressed entries.
    ratios: Vec<usize>,
    index_heads: usize,
    index_dim: usize,
    index_top_k: usize,
    /// RoPE of layers without compressed entries.
    main_rope: RopePair,
    /// RoPE of layers with compressed entries, and of the entries.
    compress_rope: RopePair,
}

/// The rotation of queries and keys, and its inverse for the result.
#[derive(Clone, Copy)]
struct RopePair {
    forward: RopeId,
    inverse: RopeId,
}

impl RopePair {
    fn new(b: &mut Builder<'_>, rope: Rope) -> Self {
        let inv_freq = rope.inv_freq.iter().map(|frequency| -frequency).collect();
        let inverse = Rope { inv_freq, ..rope.clone() };
        Self { forward: b.rope(rope), inverse: b.rope(inverse) }
    }
}

impl CompressedAttention {
    pub(crate) fn read(b: &mut Builder<'_>, norms: Norms) -> Result<Self> {
        let c = b.config;
        let layers = c.number("num_hidden_layers")?;
        let mut ratios = c.counts("compress_ratios")?;
        if ratios.len() < layers {
            let why = format!("has {} entries for {layers} layers", ratios.len());
            return Err(c.bad("compress_ratios", why));
        }
        ratios.truncate(layers);
        if let Some(other) = ratios.iter().find(|ratio| **ratio > 1 << 16) {
            return Err(c.bad("compress_ratios", format!("has {other}, more than 65536")));
        }
        let rotated = c.size("qk_rope_head_dim")?;
        let [main, compress] = [main_rope(c)?, compress_rope(c)?].map(|rope| rope.rope(rotated));
        // The published code does not scale cosines and sines (YaRN's attention factor).
        let compress = Rope { amplitude: 1.0, ..compress? };
        match c.size_or("num_key_value_heads", 1)? {
            1 => {}
            heads => return Err(c.bad("num_key_value_heads", format!("is {heads}, only 1 is supported"))),
        }
        let has_indexer = ratios.contains(&INDEXED_RATIO);
        let index = |key: &str| if has_indexer { c.size(key) } else { Ok(0) };
        let attention = Self {
            heads: c.size("num_attention_heads")?,
            head_dim: c.size("head_dim")?,
            q_rank: c.size("q_lora_rank")?,
            rotated,
            groups: c.size("o_groups")?,
            out_rank: c.size("o_lora_rank")?,
            window: c.size("sliding_window")? as u32,
            norms,
            ratios,
            index_heads: index("index_n_heads")?,
            index_dim: index("index_head_dim")?,
            index_top_k: index("index_topk")?,
            main_rope: RopePair::new(b, main?),
            compress_rope: RopePair::new(b, compress),
        };
        if !attention.heads.is_multiple_of(attention.groups) {
            let why = format!("is {}, which does not divide {} heads", attention.groups, attention.heads);
            return Err(c.bad("o_groups", why));
        }
        if attention.head_dim < rotated || has_indexer && attention.index_dim < rotated {
            return Err(c.bad("qk_rope_head_dim", format!("is {rotated}, more than a head has")));
        }
        Ok(attention)
    }

    /// Builds the attention of a layer.
    pub(crate) fn build(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{layer}.attn.");
        let (hidden, heads, dim) = (b.program.hidden, self.heads, self.head_dim);
        let ratio = self.ratios[layer];
        let rope = if ratio == 0 { self.main_rope } else { self.compress_rope };
        let start = dim - self.rotated;
        let matrix = b.matrix(&format!("{p}wq_a"), self.q_rank, hidden, false, Role::Matrix)?;
        let latent = b.linear(x, matrix)?;
        let latent = self.norms.row(b, latent, &format!("{p}q_norm"))?;
        let matrix = b.matrix(&format!("{p}wq_b"), heads * dim, self.q_rank, false, Role::Matrix)?;
        let q = b.linear(latent, matrix)?;
        let q = b.unweighted_rms(q, heads, self.norms.eps)?;
        let q = b.rotary(q, heads, start, rope.forward, Pairs::Interleaved)?;
        let matrix = b.matrix(&format!("{p}wkv"), dim, hidden, false, Role::Matrix)?;
        let k = b.linear(x, matrix)?;
        let k = self.norms.row(b, k, &format!("{p}kv_norm"))?;
        let k = b.rotary(k, 1, start, rope.forward, Pairs::Interleaved)?;
        let sinks = b.weight(&format!("{p}attn_sink"), &[heads], Role::Sinks)?;
        let y = match ratio {
            0 => {
                let id = b.layer(self.facts(Some(self.window), 0));
                let scale = (dim as f64).powf(-0.5);
                let attend = Attend {
                    q,
                    k: Some(k),
                    v: None,
                    scale,
                    soft_cap: None,
                    sinks: Some(sinks),
                    selection: None,
                };
                b.attend(id, &attend)?
            }
            _ => self.compressed_attention(b, &p, ratio, AttentionOperands { x, latent, q, k, sinks })?,
        };
        let y = b.rotary(y, heads, start, rope.inverse, Pairs::Interleaved)?;
        self.project(b, &p, y)
    }

    fn facts(&self, window: Option<u32>, index_dim: usize) -> LayerFacts {
        LayerFacts {
            kv_heads: 1,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            value_in_key: true,
            window,
            lookahead: 0,
            index_dim,
        }
    }

    /// Attention to the sliding window and to compressed entries of `ratio` tokens.
    fn compressed_attention(
        &self,
        b: &mut Builder<'_>,
        p: &str,
        ratio: usize,
        operands: AttentionOperands,
    ) -> Result<ValueId> {
        let parts = entry_parts(ratio);
        let main = self.values_and_gates(b, &format!("{p}compressor."), parts * self.head_dim, operands.x)?;
        let (row, selection, id) = if ratio == INDEXED_RATIO {
            let ip = format!("{p}indexer.");
            let index =
                self.values_and_gates(b, &format!("{ip}compressor."), parts * self.index_dim, operands.x)?;
            // The indexer scores every pool. With its elements first it reads a prefix of each row.
            let row = b.concat(index, main, 1)?;
            let id = b.layer(self.facts(None, b.width(row)));
            let width = self.index_heads * self.index_dim;
            let matrix = b.matrix(&format!("{ip}wq_b"), width, self.q_rank, false, Role::Matrix)?;
            let q = b.linear(operands.latent, matrix)?;
            let first = self.index_dim - self.rotated;
            let q = b.rotary(q, self.index_heads, first, self.compress_rope.forward, Pairs::Interleaved)?;
            let hidden = b.program.hidden;
            let weights =
                b.matrix(&format!("{ip}weights_proj"), self.index_heads, hidden, false, Role::Router)?;
            let weights = b.linear(operands.x, weights)?;
            let pool = self.key_pool(b, &format!("{ip}compressor."), ratio, 0, self.index_dim)?;
            let top_k = self.index_top_k.saturating_mul(ratio);
            let indexer = IndexerOperands { q, k: row, weights: Some(weights) };
            let selection = b.select_keys(indexer, id, top_k, Some(pool))?;
            (None, Some(selection), id)
        } else {
            (Some(main), None, b.layer(self.facts(None, b.width(main))))
        };
        let start = b.program.layers[id.0 as usize].index_dim - b.width(main);
        let pool = self.key_pool(b, &format!("{p}compressor."), ratio, start, self.head_dim)?;
        let entries = CompressedEntries { row, selection, window: self.window, pool };
        b.compressed_attend(operands, entries, id, (self.head_dim as f64).powf(-0.5))
    }

    /// The values and gates of a token, from which compressed entries are computed:
    /// `wkv · x ++ wgate · x`.
    fn values_and_gates(&self, b: &mut Builder<'_>, p: &str, width: usize, x: ValueId) -> Result<ValueId> {
        let hidden = b.program.hidden;
        let values = b.matrix(&format!("{p}wkv"), width, hidden, false, Role::Matrix)?;
        let gates = b.matrix(&format!("{p}wgate"), width, hidden, false, Role::Router)?;
        let (values, gates) = (b.linear(x, values)?, b.linear(x, gates)?);
        b.concat(values, gates, 1)
    }

    /// The pools of a compressor, whose tensor names start with `p`; `start` is the offset of its
    /// values and gates in a row.
    fn key_pool(
        &self,
        b: &mut Builder<'_>,
        p: &str,
        size: usize,
        start: usize,
        dim: usize,
    ) -> Result<KeyPool> {
        let parts = entry_parts(size);
        let combine = KeyPooling::Compressed {
            start,
            dim,
            parts,
            bias: b.weight(&format!("{p}ape"), &[size, parts * dim], Role::Router)?,
            norm: b.weight(&format!("{p}norm.weight"), &[dim], Role::Norm)?,
            eps: self.norms.eps as f32,
            rope: self.compress_rope.forward,
        };
        Ok(KeyPool { size, combine })
    }

    /// The low-rank output projection: each group of heads through its block of `wo_a`, then all
    /// groups through `wo_b`.
    fn project(&self, b: &mut Builder<'_>, p: &str, y: ValueId) -> Result<ValueId> {
        let (inputs, rank) = (self.heads * self.head_dim / self.groups, self.out_rank);
        let weight = b.weight(&format!("{p}wo_a.weight"), &[self.groups * rank, inputs], Role::Matrix)?;
        let blocks = Matrices {
            count: self.groups,
            first: Matrix::whole(weight, rank, inputs),
            weight_stride: 0,
            offset_stride: rank * inputs,
            bias_stride: 0,
        };
        let y = b.group_linear(y, blocks)?;
        let hidden = b.program.hidden;
        let out = b.matrix(&format!("{p}wo_b"), hidden, self.groups * rank, false, Role::Matrix)?;
        b.linear(y, out)
    }
}

/// Operands of the attention of a layer with compressed entries.
struct AttentionOperands {
    x: ValueId,
    /// The normed query latent (`q_lora_rank`), input of the indexer's queries.
    latent: ValueId,
    q: ValueId,
    k: ValueId,
    sinks: WeightId,
}

/// The compressed entries of a layer and the window beside them; the fields are those of
/// `Op::CompressedAttend`.
struct CompressedEntries {
    row: Option<ValueId>,
    selection: Option<ValueId>,
    window: u32,
    pool: KeyPool,
}

impl Builder<'_> {
    /// Attention to a sliding window and to compressed entries. Checks the widths of the operands.
    fn compressed_attend(
        &mut self,
        operands: AttentionOperands,
        entries: CompressedEntries,
        layer: LayerId,
        scale: f64,
    ) -> Result<ValueId> {
        let AttentionOperands { q, k, sinks, .. } = operands;
        let facts = self.program.layers[layer.0 as usize];
        self.same(self.width(k), facts.key_width(), "head_dim")?;
        if let Some(row) = entries.row {
            self.same(self.width(row), facts.index_dim, "compress_ratios")?;
        }
        let CompressedEntries { row, selection, window, pool } = entries;
        let (scale, sinks) = (scale as f32, Vector { weight: sinks, offset: 0, stride: 1 });
        let op = |out| Op::CompressedAttend { q, k, row, selection, layer, scale, sinks, window, pool, out };
        Ok(self.numbers(self.width(q), op))
    }
}

/// RoPE of layers without compressed entries, which is never scaled.
fn main_rope(c: Config<'_>) -> Result<RopeConfig<'_>> {
    let rope = if has_rope_per_kind(c)? {
        RopeConfig::of_kind(c, "main", "rope_theta", 10_000.0)?
    } else {
        RopeConfig::read(c)?
    };
    Ok(rope.unscaled())
}

/// RoPE of layers with compressed entries.
fn compress_rope(c: Config<'_>) -> Result<RopeConfig<'_>> {
    if has_rope_per_kind(c)? {
        return RopeConfig::of_kind(c, "compress", "compress_rope_theta", 160_000.0);
    }
    RopeConfig::read(c)?.with_base("compress_rope_theta", 160_000.0)
}

/// Whether `rope_parameters` has one object per kind of layer (`main`, `compress`).
fn has_rope_per_kind(c: Config<'_>) -> Result<bool> {
    Ok(c.object("rope_parameters")?.is_some_and(|all| all.get("compress").is_some()))
}
