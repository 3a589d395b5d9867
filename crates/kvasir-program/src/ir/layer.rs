//! KV cache layout of one layer: heads, widths, sliding window, MLA and indexer facts.

use serde::{Deserialize, Serialize};

/// The KV cache index of a layer: an index into [`Program::layers`](crate::ir::program::Program::layers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerId(pub u32);

/// What one attention layer stores per token, and how far it looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFacts {
    /// KV heads per token.
    pub kv_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// The value is the first `value_dim` elements of the key and is not stored again (MLA).
    pub value_in_key: bool,
    /// Sliding window: key `j` is visible to query `i` when `i - j < window`. `None` is full
    /// attention.
    pub window: Option<u32>,
    /// Number of later positions that a query attends to: key `j` is visible to query `i` when
    /// `j - i <= lookahead`.
    /// 0 is causal attention, `u32::MAX` is attention over the whole sequence (encoders).
    #[serde(default)]
    pub lookahead: u32,
    /// Elements of the indexer key that is stored beside K and V (sparse attention); 0 without an
    /// indexer.
    pub index_dim: usize,
}

impl LayerFacts {
    /// Key elements per token.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.key_dim
    }

    /// Value elements per token; 0 if they are part of the key.
    pub fn value_width(&self) -> usize {
        if self.value_in_key { 0 } else { self.kv_heads * self.value_dim }
    }

    /// The sliding window, if rows before it may be discarded. `None` for full attention, for layers
    /// with an indexer, which scores all tokens, and for bidirectional layers.
    pub fn retained_window(&self) -> Option<u32> {
        self.window.filter(|_| self.index_dim == 0 && self.lookahead == 0)
    }

    /// All elements stored per token.
    pub fn width(&self) -> usize {
        self.key_width() + self.value_width() + self.index_dim
    }
}
