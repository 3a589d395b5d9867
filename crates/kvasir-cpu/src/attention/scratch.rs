//! Scratch of attention, one per worker: the values that the stages of a work item read and write.
//!
//! Buffers grow to the largest work item and stay, so a steady decode step does not allocate.

use crate::attention::layer::HeadShape;
use crate::attention::query_blocks::QueryBlocks;
use crate::attention::softmax::accumulators::SoftmaxState;
use crate::attention::softmax::pipeline::{AttentionWeights, SoftmaxPipeline};
use crate::attention::staged_kv::StagedKv;

/// Scratch of one worker.
#[derive(Default)]
pub(crate) struct Scratch {
    shape: Option<HeadShape>,
    /// The work item's tokens by their index in the step, and how many entries each sees.
    pub(crate) tokens: Vec<(usize, i32)>,
    pub(crate) queries: QueryBlocks,
    pub(crate) kv: StagedKv,
    pub(crate) pipeline: SoftmaxPipeline,
    pub(crate) weights: AttentionWeights,
    pub(crate) state: SoftmaxState,
}

impl Scratch {
    /// Starts a work item of `heads` KV heads with `rows` query rows each: grows buffers and
    /// resets the softmax state.
    pub(crate) fn prepare(&mut self, shape: HeadShape, heads: usize, rows: usize) {
        if self.shape != Some(shape) {
            self.shape = Some(shape);
            self.kv.reshape(shape);
        }
        self.pipeline.scores.grow(2);
        self.pipeline.packed.grow(1);
        self.pipeline.rows.grow(1);
        self.state.reset(heads * rows, shape.value_width);
    }
}
