//! Shared-prefix (cascade) attention: finds views that read the same KV chunks, so that each chunk
//! is read once for all of their query rows.
//!
//! 1. Sort the views by their runs of slots, so that views with a common prefix are neighbors.
//! 2. Neighbors that share at least the first chunk form a group, of at most 64 views.
//! 3. Cut each group recursively, like a radix tree: a span is a range of chunks that a range of
//!    views all read.
//!
//! Sharing is detected from the plan alone: forks, siblings, prefix-cache hits and draft trees look
//! alike (decision 0016). Each row keeps its own m and l and meets its chunks in the same order, so
//! results are bit-identical to separate reads.

use crate::attention::views::{Chunk, ChunkSpan, PrefixGroup, View, Views};
use std::cmp::Ordering;

/// A view of more tokens than this has enough arithmetic intensity alone, and is not grouped.
const MAX_TOKENS: usize = 16;
/// Views per group at most: their accumulators must stay in a cache.
const MAX_VIEWS: usize = 64;

/// Groups the views by common prefix, and cuts their chunks into spans.
pub(crate) fn group_by_prefix(views: &mut Views) {
    let (mut order, mut groups, mut spans) = (
        std::mem::take(&mut views.order),
        std::mem::take(&mut views.groups),
        std::mem::take(&mut views.spans),
    );
    order.clear();
    groups.clear();
    spans.clear();
    order.extend(0..views.views.len() as u32);
    let view = |at: u32| &views.views[at as usize];
    order.sort_unstable_by(|&a, &b| {
        let lone = |v: &View| v.tokens > MAX_TOKENS;
        lone(view(a)).cmp(&lone(view(b))).then_with(|| views.compare(view(a), view(b))).then(a.cmp(&b))
    });
    let mut from = 0;
    while from < order.len() {
        let first = view(order[from]);
        let joins = |&at: &u32| {
            first.tokens <= MAX_TOKENS && view(at).tokens <= MAX_TOKENS && views.common(first, view(at)) > 0
        };
        let n = 1 + order[from + 1..].iter().take(MAX_VIEWS - 1).take_while(|at| joins(at)).count();
        let start = spans.len();
        views.cut(&order, from, from + n, 0, &mut spans);
        groups.push(PrefixGroup { views: (from, from + n), spans: (start, spans.len()) });
        from += n;
    }
    (views.order, views.groups, views.spans) = (order, groups, spans);
}

impl Views {
    fn same(&self, a: &Chunk, b: &Chunk) -> bool {
        a.first == b.first && self.runs(a) == self.runs(b)
    }

    /// Length of the common prefix of two views, in chunks.
    fn common(&self, a: &View, b: &View) -> usize {
        self.chunks(a).iter().zip(self.chunks(b)).take_while(|(a, b)| self.same(a, b)).count()
    }

    /// An order in which views with a common prefix are neighbors.
    fn compare(&self, a: &View, b: &View) -> Ordering {
        let (a, b) = (self.chunks(a), self.chunks(b));
        let unlike = a.iter().zip(b).find(|(a, b)| !self.same(a, b));
        unlike.map_or(a.len().cmp(&b.len()), |(a, b)| self.runs(a).cmp(self.runs(b)))
    }

    /// Cuts what the views `from .. to` read from chunk `done` on, recursively.
    fn cut(&self, order: &[u32], from: usize, to: usize, done: usize, into: &mut Vec<ChunkSpan>) {
        let view = |at: usize| &self.views[order[at] as usize];
        // The views are sorted, so the common prefix of the first and the last is that of all.
        let end = if to - from == 1 {
            self.chunks(view(from)).len()
        } else {
            self.common(view(from), view(to - 1))
        };
        if end > done {
            into.push(ChunkSpan { views: (from, to), chunks: (done, end) });
        }
        if to - from == 1 {
            return;
        }
        let mut start = from;
        while start < to {
            let first = view(start);
            let longer = |at: usize| self.common(first, view(at)) > end;
            let stop = (start + 1..to).find(|&at| !longer(at)).unwrap_or(to);
            if self.chunks(first).len() > end {
                self.cut(order, start, stop, end, into);
            }
            start = stop;
        }
    }
}
