//! Load of one data-parallel rank, for external routers (SGLang's router, llm-d).

/// Load of an engine after its last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankLoad {
    /// Index of the engine among those of its server.
    pub rank: usize,
    /// Running requests.
    pub running: u64,
    /// Requests in the queue.
    pub waiting: u64,
    /// KV cache slots that running requests hold, in tokens.
    pub used_tokens: u64,
    /// KV cache slots of the engine.
    pub capacity: u64,
}
