//! Scratch of attention, one per worker: queries, softmax state (m, l), accumulators O, staged K
//! and V, scores and attention weights.
//!
//! Buffers grow to the largest work item and stay, so a steady decode step does not allocate.

use crate::attention::block::QueryBlock;
use crate::attention::gemm::operands::KeyRows;
use crate::attention::layer::HeadShape;
use crate::attention::pack_v::unpermute_scaled;
use crate::attention::softmax::state::{
    ChunkEntries, OnlineSoftmax, PackedWeights, ScoreScaling, Scores, exp2,
};
use crate::attention::work::CHUNKS_AT_ONCE;
use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, Tile};
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::rows::CHUNK;
use crate::prefetch::next_head::NextHead;
use crate::prefetch::ranges::PrefetchRanges;

/// Scratch of one worker; grows to the largest work item and stays.
#[derive(Default)]
pub(crate) struct Scratch {
    shape: Option<HeadShape>,
    /// The work item's tokens by their index in the step, and how many entries each sees.
    pub(crate) tokens: Vec<(usize, i32)>,
    /// Per view of the item's group its first token, counted over the group; then the total.
    pub(crate) starts: Vec<usize>,
    pub(crate) blocks: Vec<QueryBlock>,
    /// Per block, a query tile for each step of 32 numbers: bf16 pairs to a word. A query row is a
    /// column, or a row in the decode path in bf16 pair order.
    pub(crate) queries: AlignedVec<Tile>,
    /// Queries widened to f32, in the decode path where operands are widened; and scores of either
    /// decode path, a row per query row.
    pub(crate) widened_queries: Vec<OperandB>,
    pub(crate) score_rows: AlignedVec<[f32; CHUNK]>,
    /// A block's queries before the transpose: a row per query row.
    pub(crate) query_rows: AlignedVec<Tile>,
    /// Online softmax state per query row: running maximum m, denominator l, and accumulators O in
    /// the column order of [`pack_v`](super::pack_v).
    pub(crate) max: Vec<f32>,
    pub(crate) sum: Vec<f32>,
    pub(crate) sums: AlignedVec<f32>,
    /// K of a chunk, per head of a block.
    pub(crate) keys: Vec<KeyRows>,
    /// The first head's K and V rows of the chunk, where they are prefetched.
    pub(crate) next_heads: [NextHead; 2],
    /// Prefetch list while a single head's keys are multiplied.
    pub(crate) prefetches: PrefetchRanges,
    /// K of a head and V of one head, widened to f32, where operands are widened.
    pub(crate) widened_keys: Vec<[OperandA; 4]>,
    pub(crate) widened_values: Vec<OperandB>,
    pub(crate) staged_keys: AlignedVec<u16>,
    pub(crate) staged_values: AlignedVec<u16>,
    /// A row of zeros, for positions without an entry.
    pub(crate) zeros: Vec<u16>,
    pub(crate) wide: Vec<f32>,
    /// V tiles of one head, and of the next head or the next chunk.
    pub(crate) values: [AlignedVec<Tile>; CHUNKS_AT_ONCE],
    /// Two score buffers: one block is scored while the other's weights are made.
    pub(crate) scores: AlignedVec<Scores>,
    pub(crate) softmax: [OnlineSoftmax; 2],
    pub(crate) packed: AlignedVec<PackedWeights>,
    /// Attention weights per chunk and block, and one spare at the end, as loads may touch it.
    pub(crate) weights: AlignedVec<[Tile; 2]>,
    /// A block's weights as f32, in the decode path.
    pub(crate) widened_weights: AlignedVec<Scores>,
    /// Rescale factors exp(m_old - m_new) per chunk and block.
    pub(crate) rescales: Vec<[f32; LANES]>,
    /// Entry numbers of the chunk; made only if some query row needs a mask.
    pub(crate) entries: ChunkEntries,
}

// SAFETY: its addresses are of a work item's rows; each item writes them before it reads there.
unsafe impl Send for Scratch {}

impl Scratch {
    /// Starts a work item of `heads` KV heads with `rows` query rows each: grows buffers and
    /// resets the softmax state.
    pub(crate) fn prepare(&mut self, shape: HeadShape, heads: usize, rows: usize) {
        if self.shape != Some(shape) {
            self.shape = Some(shape);
            let widest = shape.key_width.max(shape.value_width);
            self.staged_keys.clear();
            self.staged_values.clear();
            self.staged_values.grow(CHUNK * shape.value_width);
            self.zeros.clear();
            self.zeros.resize(widest, 0);
            self.wide.resize(widest, 0.0);
            let tiles = shape.value_width / LANES;
            // The padding of V beyond the head dimension stays zero.
            for values in &mut self.values {
                values.clear();
                values.grow(tiles * 2);
            }
            self.query_rows.clear();
            self.query_rows.grow(shape.steps());
            self.scores.grow(2);
            self.packed.grow(1);
            self.widened_weights.grow(1);
            self.score_rows.grow(LANES);
        }
        // The padding of K beyond the head dimension is never written, and stays zero.
        self.staged_keys.grow(heads * CHUNK * shape.key_width);
        let rows = heads * rows;
        self.sums.clear();
        self.sums.grow(rows * shape.value_width);
        // Padded, as a block loads 16 numbers at a time.
        self.max.clear();
        self.max.resize(rows + LANES, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(rows + LANES, 0.0);
    }

    /// Writes a query row's result: O / l.
    pub(crate) fn finish(&self, isa: Isa, shape: HeadShape, row: usize, sink: Option<f32>, to: &mut [f32]) {
        let factor = normalization(self.max[row], self.sum[row], sink);
        unpermute_scaled(isa, &self.sums[row * shape.value_width..][..shape.value_width], factor, to);
    }
}

/// Normalization factor of O: 1 / l, with the attention sink added to l.
pub(crate) fn normalization(max: f32, sum: f32, sink: Option<f32>) -> f32 {
    let (rescale, total) = match sink.map(ScoreScaling::to_base2) {
        None => (1.0, sum),
        Some(sink) => {
            let top = max.max(sink);
            let rescale = exp2(max - top);
            (rescale, sum.mul_add(rescale, exp2(sink - top)))
        }
    };
    if total > 0.0 { rescale / total } else { 0.0 }
}
