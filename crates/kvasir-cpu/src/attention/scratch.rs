//! Scratch of attention, one per worker: the values that the stages of a work item read and write.
//!
//! Buffers grow to the largest work item and stay, so a steady decode step does not allocate.

use crate::attention::chunk_prefetch::ChunkPrefetch;
use crate::attention::layer::HeadShape;
use crate::attention::packed_values::PackedValues;
use crate::attention::query_blocks::QueryBlocks;
use crate::attention::softmax::accumulators::SoftmaxState;
use crate::attention::softmax::pipeline::{AttentionWeights, SoftmaxPipeline};
use crate::attention::staged_keys::StagedKeys;
use crate::attention::staged_values::StagedValues;
use crate::attention::work::ItemTokens;

/// Scratch of one worker.
#[derive(Default)]
pub(crate) struct Scratch {
    shape: Option<HeadShape>,
    pub(crate) tokens: ItemTokens,
    pub(crate) queries: QueryBlocks,
    pub(crate) kv: StagedKv,
    pub(crate) pipeline: SoftmaxPipeline,
    pub(crate) weights: AttentionWeights,
    pub(crate) state: SoftmaxState,
}

/// K and V of the chunks that are processed.
#[derive(Default)]
pub(crate) struct StagedKv {
    pub(crate) keys: StagedKeys,
    pub(crate) values: StagedValues,
    pub(crate) packed: PackedValues,
    pub(crate) prefetch: ChunkPrefetch,
}

// SAFETY: its addresses are of a work item's rows; each item writes them before it reads there.
unsafe impl Send for StagedKv {}

impl Scratch {
    /// Starts a work item of `heads` KV heads with `rows` query rows each: grows buffers and
    /// resets the softmax state.
    pub(crate) fn prepare(&mut self, shape: HeadShape, heads: usize, rows: usize) {
        if self.shape != Some(shape) {
            self.shape = Some(shape);
            self.kv.keys.reshape(shape);
            self.kv.values.reshape(shape);
            self.kv.packed.reshape(shape);
        }
        self.kv.keys.grow(heads);
        self.pipeline.prepare();
        self.state.reset(heads * rows, shape.value_width);
    }
}
