//! Runs one layer's attention: cuts the prefix groups into work items by KV heads and tokens, for the
//! thread pool.

use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::scratch::{SCRATCH, Scratch};
use crate::attention::views::PrefixGroup;
use crate::attention::work::WorkItem;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::kv_prefetch_pages;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use std::cell::RefCell;

thread_local! {
    /// Cumulative number of work items behind each group.
    static ENDS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Query blocks of one work item at most: their accumulators stay in L2.
const BLOCKS: usize = 32;

/// Granularity of work items in a step.
struct Granularity {
    /// Tokens per work item of a single view.
    tokens: usize,
    /// KV heads per work item where query rows are few (decode).
    heads: usize,
}

impl LayerAttention<'_> {
    /// Chooses enough work items for all threads, each as large as the cache allows.
    fn cut(&self, team: &ThreadPool) -> Granularity {
        let kv_heads = self.facts.kv_heads;
        let rows: usize = self.views.views.iter().map(|v| v.tokens * self.heads).sum();
        let blocks = (rows.div_ceil(LANES) / (2 * team.len())).clamp(1, BLOCKS);
        // Heads with few query rows share blocks, so as many as possible go together.
        let heads = (kv_heads * self.views.groups.len() / team.len()).clamp(1, kv_heads);
        Granularity { tokens: (blocks * LANES / self.per_head()).max(1), heads }
    }

    fn tokens_of(&self, group: &PrefixGroup) -> usize {
        let views = &self.views.order[group.views.0..group.views.1];
        views.iter().map(|&v| self.views.views[v as usize].tokens).sum()
    }

    /// Tokens and KV heads per work item of a group with `tokens` tokens.
    fn size(&self, group: &PrefixGroup, tokens: usize, cut: &Granularity) -> (usize, usize) {
        let alone = group.views.1 - group.views.0 == 1;
        if tokens * self.per_head() < LANES {
            (tokens, cut.heads)
        } else if alone {
            (cut.tokens, 1)
        } else {
            (tokens, 1)
        }
    }

    /// Computes all tokens' attention results on the thread pool.
    ///
    /// # Safety
    /// The slots of the views must exist. No other thread may write them, or access the results,
    /// during the call.
    pub(crate) unsafe fn run(&self, team: &ThreadPool, isa: Isa, out: &DisjointRows<'_>) {
        let cut = self.cut(team);
        let kv_heads = self.facts.kv_heads;
        let items = |group: &PrefixGroup| {
            let all = self.tokens_of(group);
            let (tokens, heads) = self.size(group, all, &cut);
            (all, tokens, heads, all.div_ceil(tokens.max(1)) * kv_heads.div_ceil(heads))
        };
        ENDS.with_borrow_mut(|ends| {
            let groups = &self.views.groups;
            let mut end = 0;
            ends.clear();
            ends.extend(groups.iter().map(|group| {
                end += items(group).3;
                end
            }));
            let ends = &*ends;
            let pages = kv_prefetch_pages(isa, self.positions.len(), team.len());
            let each = |_, item| {
                let at = ends.partition_point(|end| *end <= item);
                let (all, tokens, heads, count) = items(&groups[at]);
                let item = item + count - ends[at];
                let by_heads = kv_heads.div_ceil(heads);
                let (t, h) = (item / by_heads * tokens, item % by_heads * heads);
                let heads = h..kv_heads.min(h + heads);
                let tokens = t..all.min(t + tokens);
                let work = WorkItem { group: &groups[at], heads, tokens, pages };
                SCRATCH.with_borrow_mut(|scratch| self.item(isa, &work, scratch, out));
            };
            if pages > 0 {
                // In static order: a thread should meet the rows that it prefetched a layer
                // earlier.
                return team.each_in_order(end, &each);
            }
            team.each(end, &each);
        });
    }

    /// Computes one work item: runs its spans, then writes the normalized results.
    fn item(&self, isa: Isa, item: &WorkItem<'_>, s: &mut Scratch, out: &DisjointRows<'_>) {
        let shape = HeadShape::of(self.facts);
        s.prepare(shape, item.heads.len(), item.tokens.len() * self.per_head());
        s.tokens.clear();
        s.starts.clear();
        let mut at = 0;
        for &v in &self.views.order[item.group.views.0..item.group.views.1] {
            let view = &self.views.views[v as usize];
            s.starts.push(at);
            let queries = item.tokens.start.max(at)..item.tokens.end.min(at + view.tokens);
            s.tokens.extend(queries.map(|t| (view.token + t - at, view.visible(t - at) as i32)));
            at += view.tokens;
        }
        s.starts.push(at);
        let (first, last) = item.group.spans;
        for span in &self.views.spans[first..last] {
            self.span(isa, item, span, s);
        }
        for (h, head) in item.heads.clone().enumerate() {
            for (t, &(token, _)) in s.tokens.iter().enumerate() {
                for g in 0..self.per_head() {
                    let q_head = head * self.per_head() + g;
                    // SAFETY: a query row belongs to one work item.
                    let to = unsafe { out.part(token, q_head * self.facts.value_dim, self.facts.value_dim) };
                    let row = (h * s.tokens.len() + t) * self.per_head() + g;
                    s.finish(isa, shape, row, self.sinks.map(|sinks| sinks[q_head]), to);
                }
            }
        }
    }
}
