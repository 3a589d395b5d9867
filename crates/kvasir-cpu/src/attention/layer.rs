//! One layer's attention in one step: its operands, and the shapes that follow from them.

use crate::attention::softmax::state::ScoreScaling;
use crate::attention::views::{COMPRESSED_POOL, View, Views};
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, STEP};
use crate::memory::kv_pool::{LayerPool, Pool};
use kvasir_kv::Position;
use kvasir_program::LayerFacts;
use std::sync::Arc;

/// One layer's attention in one step.
pub(crate) struct LayerAttention<'a> {
    pub(crate) isa: Isa,
    /// Queries: a row per token, split by query head.
    pub(crate) q: &'a [f32],
    pub(crate) q_stride: usize,
    pub(crate) heads: usize,
    pub(crate) facts: &'a LayerFacts,
    pub(crate) layer: usize,
    pub(crate) pools: &'a [Arc<Pool>],
    /// Compressed entries of the layer; views name them by the pool id [`COMPRESSED_POOL`].
    pub(crate) compressed: Option<&'a LayerPool>,
    pub(crate) views: &'a Views,
    /// Position of every token of the step.
    pub(crate) positions: &'a [Position],
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    /// Attention sink logits, one per query head.
    pub(crate) sinks: Option<&'a [f32]>,
}

impl LayerAttention<'_> {
    /// Query heads per KV head: the GQA group size.
    pub(crate) fn per_head(&self) -> usize {
        self.heads / self.facts.kv_heads
    }

    pub(crate) fn pool(&self, pool: u32) -> &LayerPool {
        match self.compressed {
            Some(compressed) if pool == COMPRESSED_POOL => compressed,
            _ => &self.pools[pool as usize].layers[self.layer],
        }
    }

    /// First position that a token sees: its sliding window, or 0.
    pub(crate) fn window_from(&self, token: usize) -> i32 {
        let position = self.positions[token] as i64;
        self.facts.window.map_or(0, |w| (position - i64::from(w) + 1).max(0) as i32)
    }

    /// Number of leading entries of `view` that are visible to `query`, limited by the layer's
    /// look-ahead.
    pub(crate) fn visible(&self, view: &View, query: usize) -> usize {
        let all = view.visible(query);
        match self.facts.lookahead {
            0 | u32::MAX => all,
            // The n-th entry of an encoder's view is position n of the sequence.
            ahead => all.min(self.positions[view.token + query] as usize + ahead as usize + 1),
        }
    }

    pub(crate) fn scaling(&self) -> ScoreScaling {
        ScoreScaling { scale: self.scale, soft_cap: self.soft_cap }
    }
}

/// Head dimensions padded to whole tiles, and the unpadded `dims`: the padding is kept zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadShape {
    pub(crate) key_width: usize,
    pub(crate) value_width: usize,
    dims: (usize, usize),
}

impl HeadShape {
    pub(crate) fn of(facts: &LayerFacts) -> Self {
        Self {
            key_width: facts.key_dim.next_multiple_of(STEP),
            value_width: facts.value_dim.next_multiple_of(2 * LANES),
            dims: (facts.key_dim, facts.value_dim),
        }
    }

    pub(crate) fn steps(self) -> usize {
        self.key_width / STEP
    }
}
