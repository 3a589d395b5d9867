//! The decode path of attention (GEMV) for one block: S = Q K^T, and O += P V with V read in place.
//!
//! Used up to [`max_decode_rows`](crate::kernels::max_decode_rows) query rows per
//! KV head: decode, small GQA groups and short draft verification. Needs AVX2 and a V dimension of
//! whole cache lines. With AMX only P V takes this path; S = Q K^T stays on tiles. V is not packed
//! into tiles: with so few rows of P a tile product costs nearly as much as a full one, and packing
//! V costs more than multiplying it. Without AMX the scores are computed for a SIMD vector of
//! positions at a time, instead of 16 query rows.

use crate::attention::decode::{HeadRows, ValueRows, VisibleKeys, bf16_dot, gemv};
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::scratch::Scratch;
use crate::attention::softmax::online::rescale_outputs;
use crate::attention::views::{Chunk, Run};
use crate::attention::work::{ChunkWork, ScoredBlock, WorkItem};
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::AttentionGemm;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{CHUNK, Heads};

impl LayerAttention<'_> {
    /// O = O * exp(m_old - m_new) + P V for one chunk, head by head, with V rows read in place.
    pub(crate) fn accumulate_decode(&self, item: &WorkItem<'_>, work: &ChunkWork<'_>, s: &mut Scratch) {
        let width = self.facts.value_dim;
        let seen = &work.chunks[0];
        let mut rows = [std::ptr::null::<u16>(); CHUNK];
        // Byte offset from these addresses to the current head's rows.
        let mut offset = 0;
        let first = item.heads.start + work.heads.start;
        let heads = self.heads_of_values(seen.chunk);
        let [_, mut next_head] = s.next_heads;
        let prefetches = next_head.is_some();
        for (i, head) in work.heads.clone().enumerate() {
            match heads {
                Some(heads) if i > 0 && seen.chunk.len as usize == CHUNK => {
                    offset += heads.to_next(item.heads.start + head - 1);
                }
                _ => self.value_rows(item.heads.start + head, seen.chunk, &mut rows, s),
            }
            let last = head + 1 == work.heads.end;
            next_head = match seen.next {
                Some(next) if last && prefetches => self.next_keys(next, first),
                // Without a next chunk the same rows are prefetched again, which costs nothing.
                None if last => next_head,
                _ => next_head.next_head(),
            };
            let block = &s.blocks[work.blocks.start];
            let head_rows = HeadRows { first: i * block.per_head, count: block.per_head };
            let at = block.rows[head_rows.first] as usize * width;
            let sums = &mut s.sums[at..][..head_rows.count * width];
            let rescales = &s.rescales[work.blocks.start][head_rows.first..head_rows.end()];
            rescale_outputs(self.isa, sums, width, rescales);
            // Positions past the last entry have weight 0 and are skipped.
            let values = ValueRows { rows: &rows[..seen.len().next_multiple_of(2)], offset };
            // SAFETY: the machine has the instruction set; the rows are the pool's or staged.
            unsafe {
                if AttentionGemm::of(self.isa) == AttentionGemm::Bf16Dot {
                    let weights = &s.weights[work.blocks.start];
                    bf16_dot::accumulate(weights, head_rows.first, values, &next_head, width, sums);
                } else {
                    let weights = &s.widened_weights[0];
                    gemv::accumulate(self.isa, weights, head_rows, values, &next_head, width, sums);
                }
            }
        }
    }

    /// Offsets between the heads' V rows, if the addresses of a chunk's other heads follow from the
    /// first head's alone.
    fn heads_of_values(&self, chunk: &Chunk) -> Option<Heads> {
        let runs = self.views.runs(chunk);
        let rows = |run: &Run| self.pool(run.pool).read_as_values();
        let in_place = runs.iter().all(|run| rows(run).kind() == KvType::Bf16);
        runs.first().filter(|_| in_place).map(|run| rows(run).heads())
    }
}

impl Scratch {
    /// S = Q K^T of a decode block and a chunk, without AMX.
    ///
    /// # Safety
    /// The machine must have the instruction set; queries and keys must have been made.
    pub(crate) unsafe fn decode_scores(&mut self, isa: Isa, shape: HeadShape, now: ScoredBlock) {
        let block = &self.blocks[now.block];
        let Some(out) = self.score_rows.first_chunk_mut::<LANES>() else { return };
        let [mut next, values] = self.next_heads;
        let last = self.keys.len() - 1;
        for (i, keys) in self.keys.iter().enumerate() {
            next = if i < last { next.next_head() } else { values };
            let keys = VisibleKeys { keys, visible: now.seen };
            let rows = HeadRows { first: i * block.per_head, count: block.per_head };
            // SAFETY: as the caller vouches.
            unsafe {
                if AttentionGemm::of(isa) == AttentionGemm::Bf16Dot {
                    let queries = &self.queries[block.queries..][..shape.steps()];
                    bf16_dot::scores(keys, &next, queries, rows, out);
                } else {
                    let queries = &self.widened_queries[block.queries..][..shape.steps()];
                    gemv::scores(isa, keys, &next, queries, rows, out);
                }
            }
        }
        if AttentionGemm::of(isa) != AttentionGemm::Bf16Dot {
            // SAFETY: as above.
            unsafe { gemv::transpose_scores(isa, out, &mut self.scores[now.place]) };
        }
    }
}
