use serde::{Deserialize, Serialize};

/// A layer's place in the pools: an index into [`Program::layers`](crate::Program::layers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerId(pub u32);

/// What one layer keeps per token, and how far it looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFacts {
    /// Key (and value) heads per token.
    pub kv_heads: usize,
    /// Numbers of a key head.
    pub key_dim: usize,
    /// Numbers of a value head.
    pub value_dim: usize,
    /// The value is the first `value_dim` numbers of the key and is not kept again: latent attention.
    pub value_in_key: bool,
    /// Key `j` is visible to query `i` when `0 <= i - j < window`; no limit without.
    pub window: Option<u32>,
    /// Numbers of the key that the sparse-attention indexer keeps beside; 0 without one.
    pub index_dim: usize,
}

impl LayerFacts {
    /// Numbers kept per token as keys.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.key_dim
    }

    /// Numbers kept per token as values; 0 where they are part of the key.
    pub fn value_width(&self) -> usize {
        if self.value_in_key { 0 } else { self.kv_heads * self.value_dim }
    }

    /// All numbers kept per token.
    pub fn width(&self) -> usize {
        self.key_width() + self.value_width() + self.index_dim
    }
}
