//! [`KeyPool`]: key pooling of a sparse-attention indexer.

use crate::ir::weight::WeightId;
use serde::{Deserialize, Serialize};

/// Parameters of key pools: consecutive tokens that an indexer selects together. Pool `i` has the
/// positions `i * size .. (i + 1) * size`, and is scored when all of them are visible.
///
/// The key of a pool is a weighted sum of its tokens' keys. The weights are, per channel, the
/// softmax over the pool's tokens of `gate + gate_bias[position % size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPool {
    /// Tokens per pool.
    pub size: usize,
    /// Biases of the gates, [size, key width].
    pub gate_bias: WeightId,
}
