//! Options of a session or of the requests outside sessions: K/V data type and engine configuration.

use kvasir_cpu::KvType;
use kvasir_engine::EngineConfig;
use kvasir_kv::CacheKind;

/// K/V data type and [`EngineConfig`] of one engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheOptions {
    /// K/V data type; the model's natural one if `None`.
    pub kv: Option<KvType>,
    /// Cache kind, capacity, policy and limits.
    pub engine: EngineConfig,
}

impl CacheOptions {
    /// This kind, with defaults. `contiguous` and `tree` hold one sequence; the others hold many,
    /// with prefix sharing.
    pub fn new(kind: CacheKind) -> Self {
        EngineConfig { cache: Some(kind), ..EngineConfig::default() }.into()
    }

    /// Sets the K/V data type.
    pub fn kv(self, kv: KvType) -> Self {
        Self { kv: Some(kv), ..self }
    }

    /// Enables ring buffers for the sliding-window layers of `contiguous`, and limits steps to
    /// `max_step_tokens` tokens. Rewinding beyond a ring recomputes.
    pub fn rings(mut self, max_step_tokens: u32) -> Self {
        self.engine.rings = true;
        self.engine.max_num_batched_tokens = Some(max_step_tokens);
        self
    }

    /// Sets the capacity in tokens over all sequences; by default what memory holds, at most 32768.
    pub fn capacity(mut self, tokens: u32) -> Self {
        self.engine.kv_capacity = Some(tokens);
        self
    }

    /// Sets the slots per block of `paged` and `radix`, 1 to 256.
    pub fn block_size(mut self, slots: u32) -> Self {
        self.engine.block_size = Some(slots);
        self
    }
}

impl From<EngineConfig> for CacheOptions {
    fn from(engine: EngineConfig) -> Self {
        Self { kv: None, engine }
    }
}
