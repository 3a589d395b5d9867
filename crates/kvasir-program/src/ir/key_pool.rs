//! [`KeyPool`]: key pooling of a sparse-attention indexer.

use crate::ir::rope::RopeId;
use crate::ir::weight::WeightId;
use serde::{Deserialize, Serialize};

/// Parameters of key pools: consecutive tokens that an indexer selects together. Pool `i` has the
/// positions `i * size .. (i + 1) * size`. It is complete, and is scored, if all of them are visible.
/// If positions have gaps, a complete pool may follow an incomplete one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyPool {
    /// Tokens per pool.
    pub size: usize,
    /// How a pool's key is computed.
    pub combine: KeyPooling,
}

/// How the key of a pool is computed from the cached rows of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPooling {
    /// A row is a key and a gate per channel. The pool's key is a weighted sum of keys; the weights
    /// are, per channel, the softmax over the pool of `gate + bias[position % size]`.
    Gated {
        /// Biases of the gates, [size, key width].
        bias: WeightId,
    },
    /// A row is a key. The pool's key is the mean of its keys, after RMSNorm and RoPE at the pool's
    /// first position. RoPE rotates the first elements, in pairs (i, i + half).
    Mean {
        /// Weight of the norm.
        norm: WeightId,
        /// Added to the weight: 1 for weights that are offsets, else 0.
        plus: f32,
        /// Epsilon of the norm.
        eps: f32,
        /// RoPE of the key.
        rope: RopeId,
    },
    /// A compressed entry (DeepSeek-V4). From element `start`, a row has `parts * dim` values, then
    /// as many gates. Per channel, the entry is the sum of values weighted by the softmax of
    /// `gate + bias[position % size]`, after RMSNorm and RoPE at the pool's first position. RoPE
    /// rotates the last elements, in pairs (2i, 2i + 1).
    ///
    /// With two parts, entries overlap: the softmax runs over the first part of the rows of the
    /// previous pool, if that pool is complete, and the second part of the pool's own rows.
    Compressed {
        /// First element of the values in a row.
        start: usize,
        /// Elements of an entry.
        dim: usize,
        /// 1, or 2 if entries overlap.
        parts: usize,
        /// Biases of the gates, [size, parts * dim].
        bias: WeightId,
        /// Weight of the norm.
        norm: WeightId,
        /// Epsilon of the norm.
        eps: f32,
        /// RoPE of the key.
        rope: RopeId,
    },
}

impl KeyPooling {
    /// The weights from which the key is computed.
    pub fn weights(&self) -> [Option<WeightId>; 2] {
        match self {
            Self::Gated { bias } => [Some(*bias), None],
            Self::Mean { norm, .. } => [Some(*norm), None],
            Self::Compressed { bias, norm, .. } => [Some(*bias), Some(*norm)],
        }
    }

    pub(crate) fn weights_mut(&mut self) -> [Option<&mut WeightId>; 2] {
        match self {
            Self::Gated { bias } => [Some(bias), None],
            Self::Mean { norm, .. } => [Some(norm), None],
            Self::Compressed { bias, norm, .. } => [Some(bias), Some(norm)],
        }
    }

    /// Width of a key, given the width `row` of a cached row.
    pub fn key_width(&self, row: usize) -> usize {
        match self {
            Self::Gated { .. } => row / 2,
            Self::Mean { .. } => row,
            Self::Compressed { dim, .. } => *dim,
        }
    }
}
