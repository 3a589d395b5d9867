//! O += P V in the decode path (GEMV): V is read in place.
//!
//! Used up to [`max_decode_rows`](crate::kernels::max_decode_rows) query rows per
//! KV head: decode, small GQA groups and short draft verification. Needs AVX2 and a V dimension of
//! whole cache lines. With AMX only P V takes this path; S = Q K^T stays on tiles. V is not packed
//! into tiles: with so few rows of P a tile product costs nearly as much as a full one, and packing
//! V costs more than multiplying it. Without AMX the scores are computed for a SIMD vector of
//! positions at a time, instead of 16 query rows.

use crate::attention::decode::ValueRows;
use crate::attention::kernel::AttentionKernel;
use crate::attention::layer::LayerAttention;
use crate::attention::softmax::accumulators::SoftmaxState;
use crate::attention::softmax::online::rescale_outputs;
use crate::attention::softmax::pipeline::AttentionWeights;
use crate::attention::staged_kv::StagedKv;
use crate::attention::views::{Chunk, Run};
use crate::attention::work::ChunkWork;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{CHUNK, Heads};

impl LayerAttention<'_> {
    /// O = O * exp(m_old - m_new) + P V for one chunk, head by head, with V rows read in place.
    pub(crate) fn accumulate_decode(
        &self,
        kernel: &impl AttentionKernel,
        work: &ChunkWork<'_>,
        weights: &AttentionWeights,
        kv: &mut StagedKv,
        state: &mut SoftmaxState,
    ) {
        let (width, seen) = (self.facts.value_dim, &work.chunks[0]);
        let (block, first) = (&work.blocks()[0], work.heads.start);
        let mut rows = [std::ptr::null::<u16>(); CHUNK];
        // Byte offset from these addresses to the current head's rows.
        let mut offset = 0;
        let heads = self.heads_of_values(seen.chunk);
        let mut next_head = kv.prefetch.values;
        let prefetches = next_head.is_some();
        for (i, head) in work.heads.clone().enumerate() {
            match heads {
                Some(heads) if i > 0 && seen.chunk.len as usize == CHUNK => {
                    offset += heads.to_next(head - 1);
                }
                _ => rows = kv.values.rows(self, head, seen.chunk),
            }
            let last = head + 1 == work.heads.end;
            next_head = match seen.next {
                Some(next) if last && prefetches => self.next_keys(next, first),
                // Without a next chunk the same rows are prefetched again, which costs nothing.
                None if last => next_head,
                _ => next_head.next_head(),
            };
            let at = i * block.per_head;
            let sums = state.outputs(block.rows[at], block.per_head);
            let rescales = &weights.rescales[work.blocks.start][at..at + block.per_head];
            rescale_outputs(self.isa, sums, width, rescales);
            // Positions past the last entry have weight 0 and are skipped.
            let rows = &rows[..seen.len().next_multiple_of(2)];
            let values = ValueRows { rows, offset, width, next_head: &next_head };
            // SAFETY: the rows are the pool's or staged; the decode path has whole cache lines.
            unsafe { kernel.decode_values(weights, at, values, sums) };
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
