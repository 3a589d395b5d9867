//! Buffers between S = Q K^T and O += P V: the scores of two query blocks on their way to attention
//! weights, and the weights P of all blocks.

use crate::attention::softmax::state::{OnlineSoftmax, PackedWeights, ScoreRows, Scores};
use crate::attention::work::CHUNKS_AT_ONCE;
use crate::isa::tile::{LANES, Tile};
use crate::memory::aligned::AlignedVec;

/// Double buffer of the software pipeline: one block is scored while the other's weights are made.
#[derive(Default)]
pub(crate) struct SoftmaxPipeline {
    pub(crate) scores: AlignedVec<Scores>,
    pub(crate) softmax: [OnlineSoftmax; 2],
    /// Weights before they become tiles.
    pub(crate) packed: AlignedVec<PackedWeights>,
    /// Scores of the decode path, a row per query row.
    pub(crate) rows: AlignedVec<ScoreRows>,
}

/// Attention weights P and rescale factors of the chunks and blocks that are processed together.
#[derive(Default)]
pub(crate) struct AttentionWeights {
    /// Blocks per chunk.
    blocks: usize,
    /// Per chunk and block, and one spare at the end, as loads may touch it.
    pub(crate) tiles: AlignedVec<[Tile; 2]>,
    /// A block's weights as f32, in the decode path.
    pub(crate) widened: AlignedVec<Scores>,
    /// exp(m_old - m_new) per chunk and block.
    pub(crate) rescales: Vec<[f32; LANES]>,
}

impl AttentionWeights {
    pub(crate) fn prepare(&mut self, blocks: usize) {
        self.blocks = blocks;
        self.tiles.grow(CHUNKS_AT_ONCE * blocks + 1);
        self.widened.grow(1);
        self.rescales.resize(CHUNKS_AT_ONCE * blocks, [0.0; LANES]);
    }

    /// Index of a chunk's weights of a block.
    pub(crate) fn index(&self, chunk: usize, block: usize) -> usize {
        chunk * self.blocks + block
    }
}
