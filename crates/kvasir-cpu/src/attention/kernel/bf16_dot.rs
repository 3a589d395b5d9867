//! Attention in bf16 pair dot products: nothing is widened or transposed. In the decode path
//! scores and weights are a row per query row.

use crate::attention::decode::{HeadRows, ValueRows, bf16_dot, heads};
use crate::attention::gemm::avx512_bf16;
use crate::attention::gemm::operands::ChunkTiles;
use crate::attention::kernel::AttentionKernel;
use crate::attention::packed_values::ValuePacking;
use crate::attention::query_blocks::QueryBlocks;
use crate::attention::scratch::StagedKv;
use crate::attention::softmax::pipeline::{AttentionWeights, SoftmaxPipeline};
use crate::attention::softmax::state::{ChunkMask, ScoreScaling};
use crate::attention::softmax::{self, avx512};
use crate::attention::work::ScoredBlock;
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Isa;
use crate::prefetch::next_head::NextHead;

pub(crate) struct Bf16Dot {
    pub(crate) isa: Isa,
}

impl AttentionKernel for Bf16Dot {
    const DECODES_QUERY_ROWS: bool = true;
    const READS_IN_ORDER: bool = true;

    fn isa(&self) -> Isa {
        self.isa
    }

    unsafe fn scores(
        &mut self,
        now: ScoredBlock,
        queries: &QueryBlocks,
        kv: &mut StagedKv,
        _: Option<&mut ValuePacking>,
        pipeline: &mut SoftmaxPipeline,
    ) {
        let (tiles, out) = (queries.tiles(now.block).as_ptr().cast(), &mut pipeline.scores[now.place]);
        // SAFETY: the machine has the instructions; the block has a query tile per step, and keys
        // are 64 rows; as the caller vouches.
        unsafe { avx512_bf16::scores(&kv.keys.heads[0], tiles, queries.steps, out) };
    }

    fn finish_weights(&self, place: usize, pipeline: &mut SoftmaxPipeline) {
        let SoftmaxPipeline { softmax, scores, packed, .. } = pipeline;
        // SAFETY: the machine has the instructions.
        unsafe {
            avx512::weights_in_bf16_dot_order(&mut softmax[place], &scores[place], &mut packed[0]);
        }
    }

    unsafe fn values(
        &mut self,
        chunks: &[ChunkTiles],
        _: &[OperandB],
        sums: &mut [f32],
        width: usize,
        mut during: impl FnMut(),
    ) {
        // SAFETY: the machine has the instructions; as the caller vouches.
        chunks.iter().for_each(|c| unsafe { avx512_bf16::values(*c, sums, width, &mut during) });
    }

    unsafe fn decode_scores(
        &mut self,
        now: ScoredBlock,
        queries: &QueryBlocks,
        kv: &mut StagedKv,
        pipeline: &mut SoftmaxPipeline,
    ) {
        let Some(out) = pipeline.rows.first_chunk_mut() else { return };
        for (keys, next_head, rows) in heads(kv, now.seen, queries.blocks[now.block].per_head) {
            // SAFETY: the machine has the instructions; as the caller vouches.
            unsafe { bf16_dot::scores(keys, &next_head, queries.tiles(now.block), rows, out) };
        }
    }

    fn begin_decode(
        &self,
        place: usize,
        rows: usize,
        mask: Option<ChunkMask<'_>>,
        scaling: ScoreScaling,
        pipeline: &mut SoftmaxPipeline,
    ) {
        let Some(scores) = pipeline.rows.first_chunk_mut() else { return };
        // SAFETY: the machine has the instructions.
        unsafe {
            softmax::decode::begin(&mut pipeline.softmax[place], self.isa, scores, rows, mask, scaling)
        };
    }

    fn decode_weights(
        &self,
        now: ScoredBlock,
        rows: usize,
        pipeline: &mut SoftmaxPipeline,
        weights: &mut AttentionWeights,
    ) {
        let Some(scores) = pipeline.rows.first_chunk() else { return };
        let softmax = &mut pipeline.softmax[now.place];
        // SAFETY: the machine has the instructions.
        unsafe { softmax::decode::finish_weights(softmax, scores, rows, &mut weights.tiles[now.block]) };
    }

    unsafe fn decode_values(
        &self,
        weights: &AttentionWeights,
        block: usize,
        rows: HeadRows,
        values: ValueRows<'_>,
        next_head: &NextHead,
        sums: &mut [f32],
    ) {
        // SAFETY: the machine has the instructions; as the caller vouches.
        unsafe { bf16_dot::accumulate(&weights.tiles[block], rows.first, values, next_head, sums) };
    }
}
