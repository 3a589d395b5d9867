//! O += P V as a GEMM, for KV heads with many query rows: V packed into tiles, multiplied with the
//! attention weights P. Packing of the next head's V overlaps with the products.

use crate::attention::kernel::{AttentionKernel, ChunkTiles, PvTiles};
use crate::attention::layer::LayerAttention;
use crate::attention::packed_values::{PackedValues, ValuePacking};
use crate::attention::softmax::accumulators::SoftmaxState;
use crate::attention::softmax::online::rescale_outputs;
use crate::attention::softmax::pipeline::AttentionWeights;
use crate::attention::staged_kv::StagedKv;
use crate::attention::views::Chunk;
use crate::attention::work::{CHUNKS_AT_ONCE, ChunkWork};
use crate::kernels::GEMV_ROWS;
use crate::prefetch::ranges::PrefetchRanges;

impl LayerAttention<'_> {
    /// Starts packing one head's V rows of a chunk into the tiles `to`.
    pub(crate) fn pack_head(&self, head: usize, chunk: &Chunk, to: usize, kv: &mut StagedKv) -> ValuePacking {
        let rows = kv.values.rows(self, head, chunk);
        kv.packed.start(to, rows, self.facts.value_dim)
    }

    /// O += P V, head by head, for all blocks. The next head's V is packed while one is multiplied;
    /// beside the last head the next chunk's keys are prefetched.
    pub(crate) fn accumulate_gemm(
        &self,
        kernel: &mut impl AttentionKernel,
        work: &ChunkWork<'_>,
        weights: &AttentionWeights,
        kv: &mut StagedKv,
        state: &mut SoftmaxState,
    ) {
        let last = &work.chunks[work.chunks.len() - 1];
        for (i, head) in work.heads.clone().enumerate() {
            let mut packing = if head + 1 < work.heads.end {
                self.pack_head(head + 1, last.chunk, 1, kv)
            } else {
                let next = last.next.filter(|_| work.blocks.len() == 1);
                let keys = next.map_or(PrefetchRanges::default(), |next| {
                    self.key_ranges(next, work.heads.start).first_half()
                });
                ValuePacking::only_prefetch(keys.in_parts(kv.packed.tiles[0].len()))
            };
            if work.blocks()[0].per_head > GEMV_ROWS {
                kernel.widen(&kv.packed.tiles[0], &mut kv.packed.widened);
            }
            let products = HeadProducts { work, weights, values: &kv.packed, head: i };
            for block in work.blocks.clone() {
                // SAFETY: weights and V tiles were made; the rows are the pool's or staged.
                unsafe { products.accumulate(kernel, block, &mut packing, state) };
            }
            // SAFETY: the rows are the pool's or staged.
            unsafe { packing.finish(self.isa) };
            if head + 1 < work.heads.end {
                kv.packed.tiles[1] = std::mem::replace(&mut kv.packed.tiles[0], packing.tiles);
            }
        }
    }
}

/// Operands of O += P V for one KV head.
struct HeadProducts<'a> {
    work: &'a ChunkWork<'a>,
    weights: &'a AttentionWeights,
    values: &'a PackedValues,
    /// Index of the head among those of `work`.
    head: usize,
}

impl HeadProducts<'_> {
    /// O = O * exp(m_old - m_new) + P V for the head's query rows of a block.
    ///
    /// # Safety
    /// The chunks' weights and V tiles must have been made, with V widened where operands are
    /// widened. The rows of `packing` must be readable.
    unsafe fn accumulate(
        &self,
        kernel: &mut impl AttentionKernel,
        number: usize,
        packing: &mut ValuePacking,
        state: &mut SoftmaxState,
    ) {
        let Self { work: ChunkWork { chunks, queries, .. }, weights, values, head } = *self;
        let (isa, block) = (kernel.isa(), &queries.blocks[number]);
        let (from, rows) = (head * block.per_head, block.per_head);
        let (width, sums) = (state.width, state.outputs(block.rows[from], rows));
        let rescale = |chunk: usize| &weights.rescales[weights.index(chunk, number)][from..from + rows];
        let operands = |chunk: usize| ChunkTiles {
            weights: weights.tiles[weights.index(chunk, number)..]
                .as_ptr()
                .wrapping_byte_add(from * 64)
                .cast(),
            values: values.tiles[chunk].as_ptr().cast(),
        };
        let interleaves = packing.is_unfinished() || packing.prefetches.is_unfinished();
        let mut at = 0;
        while at < chunks.len() {
            if !block.meets(&chunks[at]) {
                at += 1;
                continue;
            }
            // Later chunks are added in the same pass as long as no running maximum moves.
            let steady =
                |c: &usize| block.meets(&chunks[*c]) && rescale(*c).iter().all(|rescale| *rescale == 1.0);
            let end = at + 1 + (at + 1..chunks.len()).take_while(steady).count();
            rescale_outputs(isa, sums, width, rescale(at));
            let all: [ChunkTiles; CHUNKS_AT_ONCE] = std::array::from_fn(|n| operands((at + n).min(end - 1)));
            // SAFETY: two tiles of weights and one spare behind them, two tiles of V for each 16
            // columns; as the caller vouches.
            unsafe {
                let tiles = PvTiles { chunks: &all[..end - at], widened: &values.widened, width };
                if interleaves {
                    kernel.values(tiles, sums, || packing.step(isa));
                } else {
                    kernel.values(tiles, sums, || ());
                }
            }
            at = end;
        }
    }
}
