//! Attention in f32 SIMD on bf16 operands widened to f32, with the bits of AMX.

#[cfg(target_arch = "x86_64")]
use crate::attention::decode::{gemv, heads};
use crate::attention::gemm::operands::ChunkTiles;
use crate::attention::gemm::widened;
use crate::attention::kernel::AttentionKernel;
use crate::attention::packed_values::{PackedValues, ValuePacking};
use crate::attention::query_blocks::QueryBlocks;
use crate::attention::scratch::StagedKv;
use crate::attention::softmax::pipeline::SoftmaxPipeline;
use crate::attention::staged_keys::StagedKeys;
use crate::attention::work::ScoredBlock;
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Isa;

/// For every instruction set without bf16 dot products.
pub(crate) struct Widened {
    pub(crate) isa: Isa,
}

impl AttentionKernel for Widened {
    fn isa(&self) -> Isa {
        self.isa
    }

    fn widen_queries(&self, queries: &mut QueryBlocks) {
        widened::widen_tiles(self.isa, &queries.tiles, &mut queries.widened);
    }

    unsafe fn widen_keys(&self, keys: &mut StagedKeys, steps: usize) {
        for rows in &keys.heads {
            // SAFETY: as the caller vouches.
            unsafe { widened::widen_keys(self.isa, rows, steps, &mut keys.widened) };
        }
    }

    fn widen_values(&self, values: &mut PackedValues) {
        widened::widen_tiles(self.isa, &values.tiles[0], &mut values.widened);
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
        let StagedKeys { heads, widened, .. } = &kv.keys;
        // SAFETY: the block has a query tile per step, and keys are 64 rows; as the caller vouches.
        unsafe { widened::scores(self.isa, &heads[0], widened, tiles, queries.steps, out) };
    }

    unsafe fn values(
        &mut self,
        chunks: &[ChunkTiles],
        widened: &[OperandB],
        sums: &mut [f32],
        width: usize,
        during: impl FnMut(),
    ) {
        // SAFETY: as the caller vouches.
        unsafe { widened::values(self.isa, chunks, widened, sums, width, during) };
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn decode_scores(
        &mut self,
        now: ScoredBlock,
        queries: &QueryBlocks,
        kv: &mut StagedKv,
        pipeline: &mut SoftmaxPipeline,
    ) {
        let Some(out) = pipeline.rows.first_chunk_mut() else { return };
        for (keys, next_head, rows) in heads(kv, now.seen, queries.blocks[now.block].per_head) {
            // SAFETY: the machine has the instruction set; as the caller vouches.
            unsafe { gemv::scores(self.isa, keys, &next_head, queries.widened(now.block), rows, out) };
        }
        // SAFETY: as above.
        unsafe { gemv::transpose_scores(self.isa, out, &mut pipeline.scores[now.place]) };
    }
}
