//! The main loop of attention: all query blocks of a work item over a span of KV chunks.
//!
//! Per chunk (two at a time in prefill on AMX) and per set of KV heads that share query blocks:
//!
//! 1. Stage K, start packing V, set up prefetch.
//! 2. `scores_and_weights`: S = Q K^T and online softmax, pipelined over the query blocks.
//! 3. O += P V: `accumulate_gemm` (GEMM on packed V) or `accumulate_decode` (decode, V in place).

use crate::attention::kernel::AttentionKernel;
use crate::attention::layer::LayerAttention;
use crate::attention::query_blocks::QueryBlock;
use crate::attention::scratch::Scratch;
use crate::attention::softmax::accumulators::SoftmaxState;
use crate::attention::softmax::pipeline::{AttentionWeights, SoftmaxPipeline};
use crate::attention::softmax::state::{ChunkEntries, ChunkMask};
use crate::attention::staged_kv::StagedKv;
use crate::attention::views::{Chunk, ChunkSpan, VisibleChunk};
use crate::attention::work::{CHUNKS_AT_ONCE, ChunkWork, ScoredBlock, WorkItem};
use crate::isa::tile::transpose;
use crate::prefetch::kv_prefetch::KvPrefetchQueue;

impl LayerAttention<'_> {
    /// Runs all query rows of a span's views over its chunks.
    pub(crate) fn span<K: AttentionKernel>(
        &self,
        kernel: &mut K,
        item: &WorkItem<'_>,
        span: &ChunkSpan,
        s: &mut Scratch,
        kv_queue: &mut KvPrefetchQueue,
    ) {
        let Scratch { tokens, queries, kv, pipeline, weights, state, .. } = s;
        self.make_blocks(kernel, item, tokens, item.tokens_of(self.views, span.views), queries);
        let (queries, blocks) = (&*queries, &queries.blocks);
        weights.prepare(blocks.len());
        let view = &self.views.views[self.views.order[span.views.0] as usize];
        let mut chunks = &self.views.chunks(view)[span.chunks.0..span.chunks.1];
        let at_once = if item.heads.len() == 1 && blocks.len() > 1 { K::CHUNKS_AT_ONCE } else { 1 };
        while let Some(seen) = self.next_visible(&mut chunks, blocks) {
            let mut taken = [seen; CHUNKS_AT_ONCE];
            let more = (1..at_once).map_while(|_| self.next_visible(&mut chunks, blocks));
            let n = 1 + more.zip(&mut taken[1..]).map(|(seen, to)| *to = seen).count();
            let mut at = 0;
            while at < blocks.len() {
                let heads = &blocks[at].heads;
                let next = at + blocks[at..].iter().take_while(|b| b.heads == *heads).count();
                let decode = next - at == 1 && self.uses_decode_kernels(blocks[at].per_head);
                let heads = item.heads.start + heads.start..item.heads.start + heads.end;
                let (chunks, blocks, scaling) = (&taken[..n], at..next, self.scaling());
                let work = ChunkWork { chunks, queries, blocks, heads, decode, scaling };
                if decode && item.pages > 0 {
                    self.queue_next_layer(seen.chunk, work.heads.clone(), item.pages, kv_queue);
                }
                self.scores_and_weights(kernel, &work, kv, pipeline, weights, state);
                at = next;
                #[cfg(target_arch = "x86_64")]
                if decode {
                    self.accumulate_decode(kernel, &work, weights, kv, state);
                    continue;
                }
                self.accumulate_gemm(kernel, &work, weights, kv, state);
            }
        }
    }

    /// Advances to the next chunk of which some block sees a part.
    fn next_visible<'c>(&self, chunks: &mut &'c [Chunk], blocks: &[QueryBlock]) -> Option<VisibleChunk<'c>> {
        while let Some((chunk, rest)) = chunks.split_first() {
            *chunks = rest;
            let runs = self.views.runs(chunk);
            if let (Some(first), Some(end)) = (runs.first(), runs.last()) {
                let (first, last) = (first.position as i32, (end.position + end.len - 1) as i32);
                let seen = VisibleChunk { chunk, next: rest.first(), first, last };
                if blocks.iter().any(|block| block.meets(&seen)) {
                    return Some(seen);
                }
            }
        }
        None
    }

    /// S = Q K^T and online softmax of the chunks for all blocks, software-pipelined: the products
    /// of a block overlap with the softmax of the one before, and the packing of the first head's V
    /// with the products of its keys.
    fn scores_and_weights<K: AttentionKernel>(
        &self,
        kernel: &mut K,
        work: &ChunkWork<'_>,
        kv: &mut StagedKv,
        pipeline: &mut SoftmaxPipeline,
        weights: &mut AttentionWeights,
        state: &mut SoftmaxState,
    ) {
        let mut before: Option<ScoredBlock<'_>> = None;
        for (chunk, seen) in work.chunks.iter().enumerate() {
            let entries = self.mask_entries(work, seen);
            self.stage_kv(kernel, work, chunk, kv);
            for block in work.blocks.clone() {
                let place = before.map_or(0, |before| 1 - before.place);
                let now = ScoredBlock { work, block, chunk, seen: seen.len(), place };
                if !now.block().meets(seen) {
                    continue;
                }
                // SAFETY: keys were staged; the rows are the pool's or staged.
                unsafe { kernel.scores(now, kv, pipeline) };
                if let Some(before) = before {
                    end_softmax(kernel, before, pipeline, weights, state);
                }
                state.load(now.block(), &mut pipeline.softmax[place].run);
                let entries = entries.as_ref().filter(|_| !now.block().sees_all(seen.chunk, seen.first));
                let mask = entries.map(|entries| ChunkMask { entries, bounds: &now.block().bounds });
                kernel.begin_softmax(now, mask, pipeline);
                before = Some(now);
            }
            // SAFETY: the rows are the pool's or staged.
            unsafe { kv.packed.finish(self.isa, chunk) };
        }
        if let Some(before) = before {
            end_softmax(kernel, before, pipeline, weights, state);
        }
    }

    /// Entry number and position at each place of a chunk, if some block needs a mask.
    fn mask_entries(&self, work: &ChunkWork<'_>, seen: &VisibleChunk<'_>) -> Option<ChunkEntries> {
        let hides = |block: &QueryBlock| block.meets(seen) && !block.sees_all(seen.chunk, seen.first);
        let some = work.blocks().iter().any(hides);
        some.then(|| ChunkEntries::of(self.views.runs(seen.chunk), seen.chunk.first as i32))
    }

    /// Stages the K rows of a chunk, sets up prefetch, and starts packing the first head's V rows
    /// unless they are multiplied in place.
    fn stage_kv<K: AttentionKernel>(&self, kernel: &K, work: &ChunkWork<'_>, n: usize, kv: &mut StagedKv) {
        let VisibleChunk { chunk, .. } = work.chunks[n];
        kv.keys.stage(self, work.heads.clone(), chunk);
        if work.blocks.len() > 1 {
            kernel.widen_keys(&mut kv.keys, work.queries.steps);
        }
        kv.prefetch = self.chunk_prefetch(work, n, K::DECODES_ROWS);
        kv.packed.packing = (!work.decode).then(|| self.pack_head(work.heads.start, chunk, n, kv));
    }
}

/// Finishes the online softmax of a block: its remaining weights become tiles, and m and l are
/// stored back.
fn end_softmax(
    kernel: &impl AttentionKernel,
    now: ScoredBlock<'_>,
    pipeline: &mut SoftmaxPipeline,
    weights: &mut AttentionWeights,
    state: &mut SoftmaxState,
) {
    let (isa, number) = (kernel.isa(), weights.index(now.chunk, now.block));
    if now.work.decode {
        #[cfg(target_arch = "x86_64")]
        kernel.decode_weights(now, pipeline, weights);
    } else {
        let packed = &mut pipeline.packed[0];
        kernel.finish_weights(&mut pipeline.softmax[now.place], &pipeline.scores[now.place], packed);
        for (part, tile) in packed.as_chunks().0.iter().zip(&mut weights.tiles[number]) {
            transpose(isa, part, tile);
        }
    }
    let softmax = &mut pipeline.softmax[now.place];
    softmax.finish(isa);
    state.store(now.block(), &softmax.run);
    weights.rescales[number] = softmax.run.rescale;
}
