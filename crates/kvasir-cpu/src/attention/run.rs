//! Runs one layer's attention: cuts the prefix groups into work items by KV heads and tokens, for
//! the thread pool.

use crate::attention::kernel::{AttentionKernel, widened::Widened};
#[cfg(target_arch = "x86_64")]
use crate::attention::kernel::{amx::AmxTiles, bf16_dot::Bf16Dot};
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::scratch::Scratch;
use crate::attention::views::PrefixGroup;
use crate::attention::work::WorkItem;
#[cfg(target_arch = "x86_64")]
use crate::isa::amx::Tiles;
use crate::isa::tile::LANES;
use crate::kernels::{AttentionGemm, kv_prefetch_pages};
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use crate::threads::worker::Worker;

/// Query blocks of one work item at most: their accumulators stay in L2.
const BLOCKS: usize = 32;

/// Granularity of work items in a step.
struct Granularity {
    /// Tokens per work item of a single view.
    tokens: usize,
    /// KV heads per work item where query rows are few (decode).
    heads: usize,
}

/// How a group is cut into work items.
struct GroupItems {
    /// Tokens of the group.
    all: usize,
    /// Tokens and KV heads per work item.
    tokens: usize,
    heads: usize,
    /// Work items per range of tokens, and of the group.
    by_heads: usize,
    count: usize,
}

impl LayerAttention<'_> {
    /// Chooses enough work items for all threads, each as large as the cache allows.
    fn cut(&self, threads: &ThreadPool) -> Granularity {
        let kv_heads = self.facts.kv_heads;
        let rows: usize = self.views.views.iter().map(|v| v.tokens * self.heads).sum();
        let blocks = (rows.div_ceil(LANES) / (2 * threads.len())).clamp(1, BLOCKS);
        // Heads with few query rows share blocks, so as many as possible go together.
        let heads = (kv_heads * self.views.groups.len() / threads.len()).clamp(1, kv_heads);
        Granularity { tokens: (blocks * LANES / self.per_head()).max(1), heads }
    }

    fn cut_group(&self, group: &PrefixGroup, cut: &Granularity) -> GroupItems {
        let all = self.views.in_order(group.views).map(|view| view.tokens).sum();
        let (tokens, heads) = if all * self.per_head() < LANES {
            (all, cut.heads)
        } else if group.views.1 - group.views.0 == 1 {
            (cut.tokens, 1)
        } else {
            (all, 1)
        };
        let by_heads = self.facts.kv_heads.div_ceil(heads);
        GroupItems { all, tokens, heads, by_heads, count: all.div_ceil(tokens.max(1)) * by_heads }
    }

    /// Computes all tokens' attention results on the thread pool. `ends` is scratch: the number of
    /// work items up to the end of each group.
    ///
    /// # Safety
    /// The slots of the views must exist. No other thread may write them, or access the results,
    /// during the call.
    pub(crate) unsafe fn run(&self, threads: &ThreadPool, ends: &mut Vec<usize>, out: &DisjointRows<'_>) {
        let (groups, cut) = (&self.views.groups, self.cut(threads));
        let mut end = 0;
        ends.clear();
        ends.extend(groups.iter().map(|group| {
            end += self.cut_group(group, &cut).count;
            end
        }));
        let pages = kv_prefetch_pages(self.isa, self.positions.len(), threads.len());
        let each = |worker: &mut Worker, item| {
            let at = ends.partition_point(|end| *end <= item);
            let GroupItems { all, tokens, heads, by_heads, count } = self.cut_group(&groups[at], &cut);
            let item = item + count - ends[at];
            let (t, h) = (item / by_heads * tokens, item % by_heads * heads);
            let heads = h..self.facts.kv_heads.min(h + heads);
            let tokens = t..all.min(t + tokens);
            let item = WorkItem { group: &groups[at], heads, tokens, pages };
            let (scratch, kv_queue) = worker.scratches();
            match AttentionGemm::of(self.isa) {
                #[cfg(target_arch = "x86_64")]
                AttentionGemm::Tiles => {
                    // SAFETY: the set implies that AMX is permitted.
                    let tiles = unsafe { Tiles::configure() };
                    self.item(&mut AmxTiles(tiles), &item, scratch, kv_queue, out);
                }
                #[cfg(target_arch = "x86_64")]
                AttentionGemm::Bf16Dot => self.item(&mut Bf16Dot, &item, scratch, kv_queue, out),
                _ => self.item(&mut Widened(self.isa), &item, scratch, kv_queue, out),
            }
        };
        if pages > 0 {
            // In static order: a thread should meet the rows that it prefetched a layer earlier.
            return threads.each_in_order(end, &each);
        }
        threads.each(end, &each);
    }

    /// Computes one work item: runs its spans, then writes the normalized results.
    fn item(
        &self,
        kernel: &mut impl AttentionKernel,
        item: &WorkItem<'_>,
        s: &mut Scratch,
        kv_queue: &mut KvPrefetchQueue,
        out: &DisjointRows<'_>,
    ) {
        s.prepare(HeadShape::of(self.facts), item.heads.len(), item.tokens.len() * self.per_head());
        item.list_tokens(self, &mut s.tokens);
        let (first, last) = item.group.spans;
        for span in &self.views.spans[first..last] {
            self.span(kernel, item, span, s, kv_queue);
        }
        for (h, head) in item.heads.clone().enumerate() {
            for (t, &(token, _)) in s.tokens.iter().enumerate() {
                for g in 0..self.per_head() {
                    let q_head = head * self.per_head() + g;
                    // SAFETY: a query row belongs to one work item.
                    let to = unsafe { out.part(token, q_head * self.facts.value_dim, self.facts.value_dim) };
                    let row = (h * s.tokens.len() + t) * self.per_head() + g;
                    s.state.write_result(self.isa, row, self.sinks.map(|sinks| sinks[q_head]), to);
                }
            }
        }
    }
}
