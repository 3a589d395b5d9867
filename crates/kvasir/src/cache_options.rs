//! KV cache options of the library: cache kind, K/V data type, capacity, block size, sliding-window
//! rings.

use kvasir_cpu::KvType;
use kvasir_kv::CacheKind;

/// KV cache configuration: bookkeeping, data type and capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Cache kind. `contiguous` and `tree` hold one sequence; the others hold many, with prefix
    /// sharing.
    pub kind: CacheKind,
    /// K/V data type; the model's natural one if `None`.
    pub kv: Option<KvType>,
    /// Capacity in tokens over all sequences; if `None`, what memory holds, at most 32768.
    pub capacity: Option<u32>,
    /// Slots per block, 1 to 256, for `paged` and `radix`.
    pub block_size: u32,
    /// Maximum concurrent sequences, for kinds that hold several.
    pub sequences: u32,
    /// For `contiguous`: ring buffers for sliding-window layers, for prefill steps of at most this
    /// many tokens. Rewinding beyond a ring recomputes.
    pub rings: Option<u32>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { kind: CacheKind::Radix, kv: None, capacity: None, block_size: 16, sequences: 64, rings: None }
    }
}

impl CacheOptions {
    /// This kind, with defaults.
    pub fn new(kind: CacheKind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Sets the K/V data type.
    pub fn kv(self, kv: KvType) -> Self {
        Self { kv: Some(kv), ..self }
    }

    /// Enables rings, for prefill steps of at most `longest` tokens.
    pub fn rings(self, longest: u32) -> Self {
        Self { rings: Some(longest), ..self }
    }

    /// Sets the capacity in tokens.
    pub fn capacity(self, tokens: u32) -> Self {
        Self { capacity: Some(tokens), ..self }
    }
}
