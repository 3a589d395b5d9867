//! The kernels of attention for one instruction set: [`AttentionKernel`] has an implementation per
//! [`AttentionGemm`](crate::kernels::AttentionGemm).
//!
//! - `amx.rs`: AMX tiles; the softmax of the previous block is interleaved with the products.
//! - `bf16_dot.rs`: bf16 pair dot products, in an order of summation of their own.
//! - `widened.rs`: f32 SIMD on widened operands, bit-identical to AMX.
//!
//! `LayerAttention::run` makes a kernel per work item, for an instruction set of the machine. The
//! stages are generic over it. For few query rows per KV head, kernels call those of `decode`.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16_dot;
pub(crate) mod widened;

#[cfg(target_arch = "x86_64")]
use crate::attention::decode::{ValueRows, gemv};
#[cfg(target_arch = "x86_64")]
use crate::attention::softmax::pipeline::AttentionWeights;
use crate::attention::softmax::pipeline::SoftmaxPipeline;
use crate::attention::softmax::state::{ChunkMask, OnlineSoftmax, PackedWeights, Scores};
use crate::attention::staged_kv::{StagedKeys, StagedKv};
use crate::attention::work::ScoredBlock;
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Isa;
use crate::isa::tile::Tile;

/// Operands of O += P V: per chunk two tiles of attention weights P, and two tiles of V for each 16
/// columns.
#[derive(Clone, Copy)]
pub(crate) struct PvTiles<'a> {
    pub(crate) chunks: &'a [ChunkTiles],
    /// V of the only chunk in f32, where operands are widened for more than
    /// [`GEMV_ROWS`](crate::kernels::GEMV_ROWS) rows.
    pub(crate) widened: &'a [OperandB],
    /// Numbers of O per query row.
    pub(crate) width: usize,
}

/// Operands of O += P V for one chunk.
#[derive(Clone, Copy)]
pub(crate) struct ChunkTiles {
    pub(crate) weights: *const u8,
    pub(crate) values: *const u8,
}

/// The kernels of one instruction set, which the machine has.
pub(crate) trait AttentionKernel {
    /// Chunks processed together at most.
    const CHUNKS_AT_ONCE: usize = 1;
    /// Whether a query block may hold rows of several KV heads outside the decode path, too.
    const SHARES_BLOCKS: bool = false;
    /// Whether decode has a tile row per query row, and leaves whole chunks to the hardware
    /// prefetcher, which follows its order of reads.
    const DECODES_ROWS: bool = false;

    fn isa(&self) -> Isa;

    /// Widens tiles (of decode queries, or of V) to f32 in kernels that multiply in f32.
    fn widen(&self, _tiles: &[Tile], _to: &mut Vec<OperandB>) {}

    /// Widens staged keys of one head to f32, where operands are, once for all query blocks.
    fn widen_keys(&self, _keys: &mut StagedKeys, _steps: usize) {}

    /// S = Q K^T of a block and a chunk. AMX interleaves the softmax of the previous block, prefetches
    /// and the packing of V; other kernels leave those to the following stages.
    ///
    /// # Safety
    /// The keys must be staged, and rows of V that are not packed yet readable.
    unsafe fn scores(&mut self, now: ScoredBlock<'_>, kv: &mut StagedKv, to: &mut SoftmaxPipeline);

    /// Starts the online softmax: scale, soft cap, mask, running maximum.
    fn begin_softmax(&self, now: ScoredBlock<'_>, mask: Option<ChunkMask<'_>>, to: &mut SoftmaxPipeline) {
        to.softmax[now.place].begin(self.isa(), &mut to.scores[now.place], mask, now.work.scaling);
    }

    /// Computes the remaining attention weights of a block in bf16, two positions per word.
    fn finish_weights(&self, softmax: &mut OnlineSoftmax, scores: &Scores, packed: &mut PackedWeights) {
        softmax.finish_weights(self.isa(), scores, packed);
    }

    /// Makes the remaining weights of a block in the decode path, in the form of
    /// [`decode_values`](Self::decode_values).
    #[cfg(target_arch = "x86_64")]
    fn decode_weights(&self, now: ScoredBlock<'_>, from: &mut SoftmaxPipeline, to: &mut AttentionWeights) {
        let packed = &mut from.packed[0];
        self.finish_weights(&mut from.softmax[now.place], &from.scores[now.place], packed);
        // SAFETY: the machine has the instruction set, which is at least AVX2, as only those have a
        // decode path.
        unsafe { gemv::widen_weights(self.isa(), packed, &mut to.widened[0]) };
    }

    /// O += P V for some query rows with accumulators `sums`. `during` runs beside every tile
    /// product.
    ///
    /// # Safety
    /// The tiles must be readable.
    unsafe fn values(&mut self, tiles: PvTiles<'_>, sums: &mut [f32], during: impl FnMut());

    /// O += P V for query rows from `first` on, of one head in the decode path, with V in place.
    ///
    /// # Safety
    /// The V rows must be readable, and their width a multiple of 32 numbers.
    #[cfg(target_arch = "x86_64")]
    unsafe fn decode_values(&self, p: &AttentionWeights, first: usize, v: ValueRows<'_>, sums: &mut [f32]) {
        // SAFETY: as the caller vouches; the machine has the instruction set.
        unsafe { gemv::accumulate(self.isa(), &p.widened[0], first, v, sums) };
    }
}
