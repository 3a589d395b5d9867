//! The indexer of Qwen4 (QSA): selects blocks of tokens for GQA, by the score of their mean key.

use crate::builder::config::Config;
use crate::builder::{Builder, IndexerOperands};
use crate::error::Result;
use crate::ir::key_pool::{KeyPool, KeyPooling};
use crate::ir::layer::LayerId;
use crate::ir::op::{NormKind, Pairs};
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// An indexer with one key per token and without weights of its query heads.
#[derive(Clone, Copy)]
pub(crate) struct BlockIndexer {
    heads: usize,
    /// Elements of a query and of a key.
    pub(crate) dim: usize,
    /// Total tokens of the selected blocks.
    budget: usize,
    /// Tokens per block.
    block: usize,
    kind: NormKind,
    eps: f64,
}

impl BlockIndexer {
    /// Reads the config; `kind` and `eps` are those of the model's norms.
    pub(crate) fn read(c: Config<'_>, kind: NormKind, eps: f64) -> Result<Self> {
        let (budget, block) = (c.size("indexer_budget")?, c.size("indexer_compress_ratio")?);
        if !budget.is_multiple_of(block) {
            let why = format!("is {budget}, not a multiple of blocks of {block} tokens");
            return Err(c.bad("indexer_budget", why));
        }
        match c.size_or("indexer_kv_heads", 1)? {
            1 => {}
            heads => return Err(c.bad("indexer_kv_heads", format!("is {heads}, only 1 is supported"))),
        }
        let (heads, dim) = (c.size("indexer_n_heads")?, c.size("indexer_head_dim")?);
        Ok(Self { heads, dim, budget, block, kind, eps })
    }

    /// Builds the indexer of a layer; the tensor names of its attention start with `p`.
    pub(crate) fn build(
        self,
        b: &mut Builder<'_>,
        p: &str,
        x: ValueId,
        layer: LayerId,
        rope: RopeId,
    ) -> Result<ValueId> {
        let (q, k) = self.project(b, &format!("{p}indexer."), x)?;
        let q = b.norm(q, self.kind, &format!("{p}indexer.q_layernorm"), self.heads, self.eps)?;
        let q = b.rotary(q, self.heads, 0, rope, Pairs::Half)?;
        let norm = b.weight(&format!("{p}indexer.k_layernorm.weight"), &[self.dim], Role::Norm)?;
        let plus = if self.kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
        let combine = KeyPooling::Mean { norm, plus, eps: self.eps as f32, rope };
        let operands = IndexerOperands { q, k, weights: None };
        b.select_keys(operands, layer, self.budget, Some(KeyPool { size: self.block, combine }))
    }

    /// Projects the queries and the key: by one matrix in Hugging Face checkpoints, by two in GGUF.
    fn project(self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<(ValueId, ValueId)> {
        let (hidden, width) = (b.width(x), self.heads * self.dim);
        let project = |b: &mut Builder<'_>, name: &str, outputs: usize| {
            let matrix = b.matrix(&format!("{p}{name}"), outputs, hidden, false, Role::Matrix)?;
            b.linear(x, matrix)
        };
        if b.source.has(&format!("{p}q_proj.weight")) {
            return Ok((project(b, "q_proj", width)?, project(b, "k_proj", self.dim)?));
        }
        let both = project(b, "index_qk_proj", width + self.dim)?;
        Ok((b.slice(both, 1, 0, width)?, b.slice(both, 1, width, self.dim)?))
    }
}
