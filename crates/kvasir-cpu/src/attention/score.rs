//! One query block and one KV chunk: S = Q K^T, software-pipelined with the online softmax of the
//! previous block.
//!
//! 1. `score`: products of this block. On AMX the previous block's scores become attention weights
//!    meanwhile.
//! 2. `end_softmax` of the previous block: its remaining weights as bf16 tiles; m and l are stored
//!    back.
//! 3. `begin_softmax` of this block: mask, running maximum, rescale factor.

use crate::attention::kernel::AttentionKernel;
use crate::attention::layer::LayerAttention;
use crate::attention::packed_values::ValuePacking;
use crate::attention::scratch::StagedKv;
use crate::attention::softmax::accumulators::SoftmaxState;
use crate::attention::softmax::pipeline::{AttentionWeights, SoftmaxPipeline};
use crate::attention::softmax::state::ChunkMask;
use crate::attention::work::{ChunkWork, ScoredBlock};
use crate::isa::tile::transpose;

/// S = Q K^T of a block and a chunk. The decode path packs no V, but multiplies it in place.
///
/// # Safety
/// The keys must be staged, and the rows of `packing` readable.
pub(crate) unsafe fn score(
    kernel: &mut impl AttentionKernel,
    now: ScoredBlock,
    work: &ChunkWork<'_>,
    kv: &mut StagedKv,
    packing: Option<&mut ValuePacking>,
    pipeline: &mut SoftmaxPipeline,
) {
    #[cfg(target_arch = "x86_64")]
    if work.decode {
        // SAFETY: as the caller vouches.
        return unsafe { kernel.decode_scores(now, work.queries, kv, pipeline) };
    }
    // SAFETY: as the caller vouches.
    unsafe { kernel.scores(now, work.queries, kv, packing, pipeline) };
}

impl LayerAttention<'_> {
    /// Starts the online softmax of a scored block: mask, running maximum, rescale factor.
    pub(crate) fn begin_softmax(
        &self,
        kernel: &impl AttentionKernel,
        now: ScoredBlock,
        work: &ChunkWork<'_>,
        mask: Option<ChunkMask<'_>>,
        state: &SoftmaxState,
        pipeline: &mut SoftmaxPipeline,
    ) {
        let block = &work.queries.blocks[now.block];
        state.load(block, &mut pipeline.softmax[now.place].run);
        #[cfg(target_arch = "x86_64")]
        if work.decode {
            return kernel.begin_decode(now.place, block.used(), mask, self.scaling(), pipeline);
        }
        let SoftmaxPipeline { softmax, scores, .. } = pipeline;
        softmax[now.place].begin(kernel.isa(), &mut scores[now.place], mask, self.scaling());
    }

    /// Finishes the online softmax of a block: attention weights, running maximum and denominator.
    pub(crate) fn end_softmax(
        &self,
        kernel: &impl AttentionKernel,
        scored: ScoredBlock,
        work: &ChunkWork<'_>,
        pipeline: &mut SoftmaxPipeline,
        weights: &mut AttentionWeights,
        state: &mut SoftmaxState,
    ) {
        let block = &work.queries.blocks[scored.block];
        let number = weights.index(scored.chunk, scored.block);
        if work.decode {
            #[cfg(target_arch = "x86_64")]
            kernel.decode_weights(scored, block.used(), pipeline, weights);
        } else {
            kernel.finish_weights(scored.place, pipeline);
            for (part, tile) in pipeline.packed[0].as_chunks().0.iter().zip(&mut weights.tiles[number]) {
                transpose(self.isa, part, tile);
            }
        }
        let softmax = &mut pipeline.softmax[scored.place];
        softmax.finish(self.isa);
        state.store(block, &softmax.run);
        weights.rescales[number] = softmax.run.rescale;
    }
}
