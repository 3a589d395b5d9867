//! Attention on AMX tiles. The tile products of a block's keys are interleaved with the softmax of
//! the previous block, prefetches, and the packing of V.

use crate::attention::gemm::amx;
use crate::attention::gemm::operands::{ChunkTiles, Interleaved, ScoreOperands};
use crate::attention::kernel::AttentionKernel;
use crate::attention::packed_values::ValuePacking;
use crate::attention::query_blocks::QueryBlocks;
use crate::attention::scratch::StagedKv;
use crate::attention::softmax::avx512::WeightLoop;
use crate::attention::softmax::pipeline::SoftmaxPipeline;
use crate::attention::work::{CHUNKS_AT_ONCE, ScoredBlock};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::amx::Tiles;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::prefetch::ranges::PrefetchRanges;

/// Owns the tile configuration of the thread.
pub(crate) struct AmxTiles {
    pub(crate) isa: Isa,
    pub(crate) tiles: Tiles,
}

/// What is interleaved with the tile products of a block's keys.
struct SoftmaxBeside<'a> {
    /// Softmax of the previous block.
    weights: WeightLoop<'a>,
    prefetches: &'a mut PrefetchRanges,
    /// Packing of the first head's V.
    packing: Option<&'a mut ValuePacking>,
}

impl Interleaved for SoftmaxBeside<'_> {
    #[inline(always)]
    unsafe fn step(&mut self) {
        // SAFETY: the caller vouches for the instructions.
        unsafe { self.weights.step() };
    }

    #[inline(always)]
    unsafe fn before(&mut self, last: bool, products: usize) {
        self.prefetches.prefetch();
        if last && let Some(packing) = self.packing.as_mut().filter(|packing| packing.is_unfinished()) {
            // SAFETY: the caller vouches for the instructions; the rows are the pool's or staged.
            (0..products).for_each(|_| unsafe { packing.step(Isa::AMX) });
        }
    }
}

impl AttentionKernel for AmxTiles {
    // With many query rows per head, loading and storing O dominates; with few, memory bandwidth
    // does, and K and V are read in order.
    const CHUNKS_AT_ONCE: usize = CHUNKS_AT_ONCE;
    const SHARES_BLOCKS: bool = true;

    fn isa(&self) -> Isa {
        self.isa
    }

    unsafe fn scores(
        &mut self,
        now: ScoredBlock,
        queries: &QueryBlocks,
        kv: &mut StagedKv,
        packing: Option<&mut ValuePacking>,
        pipeline: &mut SoftmaxPipeline,
    ) {
        let several = kv.keys.heads.len() > 1;
        self.tiles.of_shape(LANES, if several { queries.blocks[now.block].per_head } else { LANES });
        // SAFETY: the machine has the instructions, and tiles are configured; as the caller
        // vouches.
        unsafe { scores_beside_softmax(now, queries, kv, packing, pipeline) };
    }

    unsafe fn values(
        &mut self,
        chunks: &[ChunkTiles],
        _: &[OperandB],
        sums: &mut [f32],
        width: usize,
        during: impl FnMut(),
    ) {
        self.tiles.of_shape(sums.len() / width, LANES);
        // SAFETY: as above.
        unsafe { amx::values(chunks, sums, width, during) };
    }
}

/// S = Q K^T of a block, while the weights of the block before are made.
///
/// # Safety
/// The machine must have the instructions, the keys must be readable, and tiles configured.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn scores_beside_softmax(
    now: ScoredBlock,
    queries: &QueryBlocks,
    kv: &mut StagedKv,
    packing: Option<&mut ValuePacking>,
    pipeline: &mut SoftmaxPipeline,
) {
    let [first, second] = &mut pipeline.scores[..] else { return };
    let (out, scores) = if now.place == 0 { (first, second) } else { (second, first) };
    // Where there was no block before, none of its work is left.
    let softmax = &mut pipeline.softmax[1 - now.place];
    let weights = WeightLoop::resume(softmax, scores, &mut pipeline.packed[0]);
    let operands = ScoreOperands {
        keys: &kv.keys.heads,
        visible: now.seen,
        behind: &kv.prefetch.values.at,
        queries: queries.tiles(now.block).as_ptr().cast(),
        rows_per_head: queries.blocks[now.block].per_head,
        steps: queries.steps,
    };
    let mut beside = SoftmaxBeside { weights, prefetches: &mut kv.prefetch.ranges, packing };
    // SAFETY: the block has a query tile per step, and keys are 64 rows each; as the caller
    // vouches.
    unsafe { amx::scores(operands, out, &mut beside) };
    beside.weights.suspend();
}
