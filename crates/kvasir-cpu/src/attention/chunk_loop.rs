//! The main loop of attention: all query blocks of a work item over a span of KV chunks.
//!
//! Per chunk (two at a time in prefill on AMX) and per set of KV heads that share query blocks:
//!
//! 1. Stage K, start packing V, set up prefetch.
//! 2. `scores_and_weights`: S = Q K^T and online softmax, pipelined over the query blocks.
//! 3. O += P V: `accumulate_gemm` (GEMM on packed V) or `accumulate_decode` (decode, V in place).

use crate::attention::block::QueryBlock;
use crate::attention::gemm::operands::prefetch_points;
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::scratch::Scratch;
use crate::attention::views::{Chunk, ChunkSpan};
use crate::attention::work::{CHUNKS_AT_ONCE, ChunkWork, ScoredBlock, VisibleChunk, WorkItem};
use crate::isa::amx::Tiles;
use crate::isa::tile::LANES;
use crate::kernels::AttentionGemm;
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::prefetch::ranges::PrefetchRanges;

impl LayerAttention<'_> {
    /// Runs all query rows of a span's views over its chunks.
    pub(crate) fn span(
        &self,
        item: &WorkItem<'_>,
        span: &ChunkSpan,
        s: &mut Scratch,
        kv_queue: &mut KvPrefetchQueue,
    ) {
        let first_view = span.views.0 - item.group.views.0;
        let last_view = span.views.1 - item.group.views.0;
        let of = |at: usize| at.clamp(item.tokens.start, item.tokens.end) - item.tokens.start;
        let tokens = of(s.starts[first_view])..of(s.starts[last_view]);
        self.make_blocks(item, tokens, s);
        let view = &self.views.views[self.views.order[span.views.0] as usize];
        let mut chunks = &self.views.chunks(view)[span.chunks.0..span.chunks.1];
        let mut tiles = self.isa.configure_tiles();
        // With many query rows per head, loading and storing O dominates; with few, memory
        // bandwidth does, and K and V are read in order.
        let at_once = if AttentionGemm::of(self.isa) == AttentionGemm::Tiles
            && item.heads.len() == 1
            && s.blocks.len() > 1
        {
            CHUNKS_AT_ONCE
        } else {
            1
        };
        while let Some(seen) = self.next_visible(&mut chunks, &s.blocks) {
            let mut taken = [seen; CHUNKS_AT_ONCE];
            let more = (1..at_once).map_while(|_| self.next_visible(&mut chunks, &s.blocks));
            let n = 1 + more.zip(&mut taken[1..]).map(|(seen, to)| *to = seen).count();
            let mut at = 0;
            while at < s.blocks.len() {
                let heads = s.blocks[at].heads.clone();
                let next = at + s.blocks[at..].iter().take_while(|b| b.heads == heads).count();
                let decode = next - at == 1 && self.uses_decode_kernels(s.blocks[at].per_head);
                let work = ChunkWork { chunks: &taken[..n], blocks: at..next, heads, decode };
                if decode && item.pages > 0 {
                    let first = item.heads.start;
                    let heads = first + work.heads.start..first + work.heads.end;
                    self.queue_next_layer(seen.chunk, heads, item.pages, kv_queue);
                }
                self.scores_and_weights(item, &work, &mut tiles, s);
                at = next;
                #[cfg(target_arch = "x86_64")]
                if decode {
                    self.accumulate_decode(item, &work, s);
                    continue;
                }
                self.accumulate_gemm(item, &work, &mut tiles, s);
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

    /// S = Q K^T and online softmax of the chunks for all blocks. The products of a block overlap
    /// with the softmax of the one before, and the packing of the first head's V with the products
    /// of its keys.
    fn scores_and_weights(
        &self,
        item: &WorkItem<'_>,
        work: &ChunkWork<'_>,
        tiles: &mut Option<Tiles>,
        s: &mut Scratch,
    ) {
        let shape = HeadShape::of(self.facts);
        if let Some(tiles) = tiles {
            let several = work.heads.len() > 1;
            tiles.of_shape(LANES, if several { s.blocks[work.blocks.start].per_head } else { LANES });
        }
        let head = item.heads.start + work.heads.start;
        let many = work.blocks.len() > 1;
        let mut before: Option<ScoredBlock> = None;
        for (n, seen) in work.chunks.iter().enumerate() {
            let hides = |block: &QueryBlock| block.meets(seen) && !block.sees_all(seen.chunk, seen.first);
            if s.blocks[work.blocks.clone()].iter().any(hides) {
                self.number_entries(seen.chunk, s);
            }
            // Keys are widened once, if several query blocks use them.
            self.stage_keys(item, work.heads.clone(), many, seen.chunk, s);
            s.next_heads = self.first_next_heads(seen.chunk, head);
            s.prefetches = PrefetchRanges::default();
            if work.heads.len() == 1 {
                let meeting = s.blocks[work.blocks.clone()].iter().filter(|b| b.meets(seen)).count();
                let ranges = match seen.next {
                    Some(next) if many => {
                        self.append_value_ranges(next, head, self.key_ranges(next, head)).to_l2()
                    }
                    _ if many => PrefetchRanges::default(),
                    _ if work.decode => {
                        self.append_value_ranges(seen.chunk, head, PrefetchRanges::default()).to_l2()
                    }
                    // The first half was prefetched beside the previous chunk's values.
                    _ => self.key_ranges(seen.chunk, head).second_half(),
                };
                s.prefetches = ranges.in_parts(meeting * prefetch_points(shape.steps()));
            }
            let mut packing = (!work.decode).then(|| {
                let tiles = std::mem::take(&mut s.values[n]);
                self.start_packing(head, seen.chunk, tiles, s)
            });
            for block in work.blocks.clone() {
                if !s.blocks[block].meets(seen) {
                    continue;
                }
                let place = before.map_or(0, |before| 1 - before.place);
                let now = ScoredBlock { block, chunk: n, seen: seen.len(), place };
                // SAFETY: blocks and keys were made, and tiles are configured; the rows are the
                // pool's or staged.
                unsafe { s.score(self.isa, shape, now, before, packing.as_mut()) };
                s.begin_softmax(self.isa, now, seen, self.scaling(), work.decode);
                before = Some(now);
            }
            if let Some(mut packing) = packing {
                // SAFETY: the rows are the pool's or staged.
                unsafe { packing.finish(self.isa) };
                s.values[n] = packing.tiles;
            }
        }
        if let Some(before) = before {
            s.end_softmax(self.isa, before, work.decode);
        }
    }
}
