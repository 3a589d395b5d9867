//! The kernels of attention for one instruction set: [`AttentionKernel`] has an implementation per
//! [`AttentionGemm`](crate::kernels::AttentionGemm).
//!
//! `LayerAttention::run` makes one per work item, and the stages are generic over it. So the
//! machine has the instructions of a kernel value. The functions that are called are in `gemm`
//! (S and P V of blocks of many query rows), `decode` (of few) and `softmax`.
//!
//! - `amx.rs`: AMX tiles; the softmax of the previous block is interleaved with the products.
//! - `bf16_dot.rs`: bf16 pair dot products.
//! - `widened.rs`: f32 SIMD on widened operands.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16_dot;
pub(crate) mod widened;

#[cfg(target_arch = "x86_64")]
use crate::attention::decode::{HeadRows, ValueRows, gemv};
use crate::attention::gemm::operands::ChunkTiles;
use crate::attention::packed_values::{PackedValues, ValuePacking};
use crate::attention::query_blocks::QueryBlocks;
use crate::attention::scratch::StagedKv;
use crate::attention::softmax::pipeline::SoftmaxPipeline;
#[cfg(target_arch = "x86_64")]
use crate::attention::softmax::{pipeline::AttentionWeights, state::ChunkMask, state::ScoreScaling};
use crate::attention::staged_keys::StagedKeys;
use crate::attention::work::ScoredBlock;
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Isa;
#[cfg(target_arch = "x86_64")]
use crate::prefetch::next_head::NextHead;

/// The kernels of one instruction set.
pub(crate) trait AttentionKernel {
    /// Chunks processed together at most.
    const CHUNKS_AT_ONCE: usize = 1;
    /// Whether KV heads share query blocks above the decode path too.
    const SHARES_BLOCKS: bool = false;
    /// Whether the query tiles of the decode path have a row per query row.
    const DECODES_QUERY_ROWS: bool = false;
    /// Whether the decode path reads rows in an order that the hardware prefetcher follows.
    const READS_IN_ORDER: bool = false;

    fn isa(&self) -> Isa;

    /// Widens the queries of the decode path to f32, where operands are.
    fn widen_queries(&self, _queries: &mut QueryBlocks) {}

    /// Widens K of one head to f32, where operands are, once for all query blocks.
    ///
    /// # Safety
    /// `keys` must be 64 rows of `steps` times 32 numbers.
    unsafe fn widen_keys(&self, _keys: &mut StagedKeys, _steps: usize) {}

    /// Widens the first V tiles to f32, where operands are, once for all query blocks.
    fn widen_values(&self, _values: &mut PackedValues) {}

    /// S = Q K^T of a block and a chunk. AMX also makes the previous block's weights, prefetches
    /// the ranges and packs V; other kernels leave that to the stages that follow.
    ///
    /// # Safety
    /// Keys must be staged with as many steps as there are query tiles, and the rows of `packing`
    /// be readable.
    unsafe fn scores(
        &mut self,
        now: ScoredBlock,
        queries: &QueryBlocks,
        kv: &mut StagedKv,
        packing: Option<&mut ValuePacking>,
        pipeline: &mut SoftmaxPipeline,
    );

    /// Makes the remaining weights of a block, packed.
    fn finish_weights(&self, place: usize, pipeline: &mut SoftmaxPipeline) {
        let SoftmaxPipeline { softmax, scores, packed, .. } = pipeline;
        softmax[place].finish_weights(self.isa(), &scores[place], &mut packed[0]);
    }

    /// O += P V over `chunks`, for some query rows with accumulators `sums` of `width` numbers each.
    /// `during` runs beside every tile product. Where operands are widened, `widened` is the only
    /// chunk's V in f32 if there are more than [`GEMV_ROWS`](crate::kernels::GEMV_ROWS) rows.
    ///
    /// # Safety
    /// The chunks' tiles must be readable.
    unsafe fn values(
        &mut self,
        chunks: &[ChunkTiles],
        widened: &[OperandB],
        sums: &mut [f32],
        width: usize,
        during: impl FnMut(),
    );

    /// [`scores`](Self::scores) in the decode path.
    ///
    /// # Safety
    /// As for [`scores`](Self::scores).
    #[cfg(target_arch = "x86_64")]
    unsafe fn decode_scores(
        &mut self,
        now: ScoredBlock,
        queries: &QueryBlocks,
        kv: &mut StagedKv,
        pipeline: &mut SoftmaxPipeline,
    ) {
        // SAFETY: as the caller vouches.
        unsafe { self.scores(now, queries, kv, None, pipeline) };
    }

    /// Starts the online softmax of `rows` query rows in the decode path.
    #[cfg(target_arch = "x86_64")]
    fn begin_decode(
        &self,
        place: usize,
        _rows: usize,
        mask: Option<ChunkMask<'_>>,
        scaling: ScoreScaling,
        SoftmaxPipeline { softmax, scores, .. }: &mut SoftmaxPipeline,
    ) {
        softmax[place].begin(self.isa(), &mut scores[place], mask, scaling);
    }

    /// Makes the remaining weights of a decode block of `rows` query rows.
    #[cfg(target_arch = "x86_64")]
    fn decode_weights(
        &self,
        now: ScoredBlock,
        _rows: usize,
        pipeline: &mut SoftmaxPipeline,
        weights: &mut AttentionWeights,
    ) {
        self.finish_weights(now.place, pipeline);
        // SAFETY: the machine has the instruction set, which is at least AVX2, as only those have a
        // decode path.
        unsafe { gemv::widen_weights(self.isa(), &pipeline.packed[0], &mut weights.widened[0]) };
    }

    /// O += P V for the query rows of one head, with V read in place. Prefetches `next_head`.
    ///
    /// # Safety
    /// The V rows must be readable, and their width a multiple of 32 numbers.
    #[cfg(target_arch = "x86_64")]
    unsafe fn decode_values(
        &self,
        weights: &AttentionWeights,
        _block: usize,
        rows: HeadRows,
        values: ValueRows<'_>,
        next_head: &NextHead,
        sums: &mut [f32],
    ) {
        // SAFETY: as the caller vouches; the machine has the instruction set.
        unsafe { gemv::accumulate(self.isa(), &weights.widened[0], rows, values, next_head, sums) };
    }
}
