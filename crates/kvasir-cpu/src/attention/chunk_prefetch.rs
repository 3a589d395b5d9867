//! What attention prefetches: the ranges of a chunk's K and V, the next head's rows, and the same
//! rows of the next layer.

use crate::attention::layer::LayerAttention;
use crate::attention::views::{Chunk, Run};
use crate::attention::work::ChunkWork;
use crate::isa::tile::LANES;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{BLOCK_SLOTS, CHUNK, Rows};
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::prefetch::next_head::NextHead;
use crate::prefetch::ranges::PrefetchRanges;
use std::ops::Range;

/// What is prefetched beside the products of a chunk's keys.
#[derive(Default)]
pub(crate) struct ChunkPrefetch {
    /// The first head's K and V rows of the chunk, where they are prefetched.
    pub(crate) keys: NextHead,
    pub(crate) values: NextHead,
    /// Prefetch list while a single head's keys are multiplied.
    pub(crate) ranges: PrefetchRanges,
}

impl LayerAttention<'_> {
    /// Sets up the prefetch beside the products of a chunk's keys. With `in_order`, nothing is to
    /// be prefetched where the bf16 rows of a whole chunk are contiguous: the hardware prefetcher
    /// follows them from head to head.
    pub(crate) fn chunk_prefetch(&self, work: &ChunkWork<'_>, chunk: usize, in_order: bool) -> ChunkPrefetch {
        let seen = &work.chunks[chunk];
        let (chunk, head) = (seen.chunk, work.heads.start);
        let follows = |run: &Run| {
            run.len as usize == CHUNK
                && (run.slot as usize).is_multiple_of(BLOCK_SLOTS)
                && self.pool(run.pool).keys.kind() == KvType::Bf16
        };
        let values = |run: &Run| self.pool(run.pool).read_as_values();
        let [keys, values] = match self.views.runs(chunk) {
            [run] if in_order && follows(run) => Default::default(),
            _ => [self.next_keys(chunk, head), self.next_head(chunk, head, values)],
        };
        let many = work.blocks.len() > 1;
        let ranges = match seen.next {
            _ if work.heads.len() > 1 => PrefetchRanges::default(),
            Some(next) if many => self.append_value_ranges(next, head, self.key_ranges(next, head)).to_l2(),
            _ if many => PrefetchRanges::default(),
            _ if work.decode => self.append_value_ranges(chunk, head, PrefetchRanges::default()).to_l2(),
            // The first half was prefetched beside the previous chunk's values.
            _ => self.key_ranges(chunk, head).second_half(),
        };
        let blocks = work.blocks().iter().filter(|block| block.meets(seen)).count();
        // AMX prefetches twice per step of 32 numbers.
        let points = 2 * blocks * work.queries.steps;
        ChunkPrefetch { keys, values, ranges: ranges.in_parts(points) }
    }

    /// Prefetch list of one head's K rows of a chunk.
    pub(crate) fn key_ranges(&self, chunk: &Chunk, head: usize) -> PrefetchRanges {
        let mut ranges = PrefetchRanges::default();
        for run in self.views.runs(chunk) {
            self.pool(run.pool).keys.contiguous(run.slot, run.len, head, |at, bytes| ranges.add(at, bytes));
        }
        ranges
    }

    /// Appends one head's V rows of a chunk to a prefetch list, unless V is part of K.
    fn append_value_ranges(&self, chunk: &Chunk, head: usize, mut ranges: PrefetchRanges) -> PrefetchRanges {
        for run in self.views.runs(chunk) {
            if let Some(values) = &self.pool(run.pool).values {
                values.contiguous(run.slot, run.len, head, |at, bytes| ranges.add(at, bytes));
            }
        }
        ranges
    }

    /// Records where these heads' K and V rows of a chunk lie in the next layer, at most `pages`
    /// pages per layer. The last layer is followed by the first one, of the next step. Nothing is
    /// recorded if the next layer has another shape.
    pub(crate) fn queue_next_layer(
        &self,
        chunk: &Chunk,
        heads: Range<usize>,
        pages: usize,
        to: &mut KvPrefetchQueue,
    ) {
        to.record(self.layer, pages, |record| {
            for run in self.views.runs(chunk) {
                // The next layer's compressed entries are not computed yet.
                let Some(pool) = self.pools.get(run.pool as usize) else { continue };
                let next = (self.layer + 1) % pool.layers.len();
                if pool.facts()[next] == pool.facts()[self.layer] {
                    let next = &pool.layers[next];
                    for rows in [Some(&next.keys), next.values.as_ref()].into_iter().flatten() {
                        heads.clone().for_each(|head| rows.contiguous(run.slot, run.len, head, &mut *record));
                    }
                }
            }
        });
    }

    /// One head's K rows of a chunk.
    pub(crate) fn next_keys(&self, chunk: &Chunk, head: usize) -> NextHead {
        self.next_head(chunk, head, |run| &self.pool(run.pool).keys)
    }

    fn next_head<'a>(&'a self, chunk: &Chunk, head: usize, rows: impl Fn(&Run) -> &'a Rows) -> NextHead {
        let Some(first) = self.views.runs(chunk).first() else { return NextHead::default() };
        // Positions without rows repeat the first address.
        let (pool, at) = (rows(first), [rows(first).part(first.slot, head); CHUNK / LANES]);
        let mut next_head = NextHead { at, bytes: pool.part_bytes() * LANES, head, heads: pool.heads() };
        for run in self.views.runs(chunk) {
            let first = run.position as usize % CHUNK;
            for quarter in first / LANES..=(first + run.len as usize - 1) / LANES {
                let skipped = (quarter * LANES).saturating_sub(first) as u32;
                next_head.at[quarter] = rows(run).part(run.slot + skipped, head);
            }
        }
        next_head
    }
}
