//! O += P V as a GEMM, for KV heads with many query rows: V packed into tiles, multiplied with the
//! attention weights P. Packing of the next head's V overlaps with the products.

use crate::attention::gemm::operands::ChunkTiles;
use crate::attention::gemm::products;
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::pack_v::ValuePacking;
use crate::attention::scratch::Scratch;
use crate::attention::softmax::online::rescale_outputs;
use crate::attention::work::{CHUNKS_AT_ONCE, ChunkWork, VisibleChunk, WorkItem};
use crate::isa::amx::Tiles;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::{AttentionGemm, GEMV_ROWS};
use crate::prefetch::ranges::PrefetchRanges;

impl LayerAttention<'_> {
    /// O += P V, head by head, for all blocks. The next head's V is packed while one is multiplied;
    /// beside the last head the next chunk's keys are prefetched.
    pub(crate) fn accumulate_gemm(
        &self,
        item: &WorkItem<'_>,
        work: &ChunkWork<'_>,
        tiles: &mut Option<Tiles>,
        s: &mut Scratch,
    ) {
        let shape = HeadShape::of(self.facts);
        let last = &work.chunks[work.chunks.len() - 1];
        for (i, head) in work.heads.clone().enumerate() {
            let mut packing = if head + 1 < work.heads.end {
                let tiles = std::mem::take(&mut s.values[1]);
                self.start_packing(item.heads.start + head + 1, last.chunk, tiles, s)
            } else {
                let first = item.heads.start + work.heads.start;
                let next = last.next.filter(|_| work.blocks.len() == 1);
                let keys =
                    next.map_or(PrefetchRanges::default(), |next| self.key_ranges(next, first).first_half());
                ValuePacking::only_prefetch(keys.in_parts(s.values[0].len()))
            };
            if AttentionGemm::of(self.isa) == AttentionGemm::Widened
                && s.blocks[work.blocks.start].per_head > GEMV_ROWS
            {
                products::widen_values(self.isa, &s.values[0], &mut s.widened_values);
            }
            for block in work.blocks.clone() {
                if let Some(tiles) = tiles {
                    tiles.of_shape(s.blocks[block].per_head, LANES);
                }
                // SAFETY: weights and V tiles were made, and tiles are configured; the rows are the
                // pool's or staged.
                unsafe { s.accumulate_block(self.isa, shape, block, i, work.chunks, &mut packing) };
            }
            // SAFETY: the rows are the pool's or staged.
            unsafe { packing.finish(self.isa) };
            if head + 1 < work.heads.end {
                s.values[1] = std::mem::replace(&mut s.values[0], packing.tiles);
            }
        }
    }
}

impl Scratch {
    /// O = O * exp(m_old - m_new) + P V for head `head` of a block.
    ///
    /// # Safety
    /// The chunks' weights and V tiles must have been made, with V widened where operands are
    /// widened. The rows of `packing` must be readable. With AMX, tiles must be configured for the
    /// block's rows.
    unsafe fn accumulate_block(
        &mut self,
        isa: Isa,
        shape: HeadShape,
        block: usize,
        head: usize,
        chunks: &[VisibleChunk<'_>],
        packing: &mut ValuePacking,
    ) {
        let (number, block) = (block, &self.blocks[block]);
        let (from, rows) = (head * block.per_head, block.per_head);
        let first = block.rows[from] as usize * shape.value_width;
        let sums = &mut self.sums[first..][..rows * shape.value_width];
        let rescale = |chunk: usize| &self.rescales[chunk * self.blocks.len() + number][from..from + rows];
        let operands = |chunk: usize| {
            let weights = self.weights[chunk * self.blocks.len() + number..].as_ptr().cast::<u8>();
            ChunkTiles {
                weights: weights.wrapping_add(from * 64),
                values: self.values[chunk].as_ptr().cast(),
            }
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
            rescale_outputs(isa, sums, shape.value_width, rescale(at));
            let all: [ChunkTiles; CHUNKS_AT_ONCE] = std::array::from_fn(|n| operands((at + n).min(end - 1)));
            // SAFETY: two tiles of weights and one spare behind them, two tiles of V for each 16
            // columns; as the caller vouches.
            unsafe {
                let (chunks, widened) = (&all[..end - at], &self.widened_values[..]);
                if interleaves {
                    products::values(isa, chunks, widened, sums, shape.value_width, || packing.step(isa));
                } else {
                    products::values(isa, chunks, widened, sums, shape.value_width, || ());
                }
            }
            at = end;
        }
    }
}
