use super::view::{Chunk, View, Views};
use std::cmp::Ordering;

/// A view of more tokens than this keeps the units busy alone.
const FEW: usize = 16;
/// Views of one group at most: their sums must stay in a cache.
const MOST: usize = 64;

/// Views whose first chunks are the same: branches of one trunk, siblings, hits on one prefix; or a single view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Its views, in [`Views::order`].
    pub(crate) views: (usize, usize),
    /// Its stretches, in [`Views::stretches`].
    pub(crate) stretches: (usize, usize),
}

/// Chunks that some neighbouring views of a group all read: they are read once for all of them.
///
/// The stretches that concern one view follow each other in order of position, so every view reduces its chunks as if it were alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The views, in [`Views::order`].
    pub(crate) views: (usize, usize),
    /// The chunks, counted from each view's first.
    pub(crate) chunks: (usize, usize),
}

/// Finds which views read the same, and cuts their reads into stretches.
pub(super) fn share(views: &mut Views) {
    let (mut order, mut groups, mut stretches) = (
        std::mem::take(&mut views.order),
        std::mem::take(&mut views.groups),
        std::mem::take(&mut views.stretches),
    );
    order.clear();
    groups.clear();
    stretches.clear();
    order.extend(0..views.views.len() as u32);
    let view = |at: u32| &views.views[at as usize];
    order.sort_unstable_by(|&a, &b| {
        let lone = |v: &View| v.tokens > FEW;
        lone(view(a)).cmp(&lone(view(b))).then_with(|| views.compare(view(a), view(b))).then(a.cmp(&b))
    });
    let mut from = 0;
    while from < order.len() {
        let first = view(order[from]);
        let joins =
            |&at: &u32| first.tokens <= FEW && view(at).tokens <= FEW && views.common(first, view(at)) > 0;
        let n = 1 + order[from + 1..].iter().take(MOST - 1).take_while(|at| joins(at)).count();
        let start = stretches.len();
        views.cut(&order, (from, from + n), 0, &mut stretches);
        groups.push(Group { views: (from, from + n), stretches: (start, stretches.len()) });
        from += n;
    }
    (views.order, views.groups, views.stretches) = (order, groups, stretches);
}

impl Views {
    fn same(&self, a: &Chunk, b: &Chunk) -> bool {
        a.first == b.first && self.runs(a) == self.runs(b)
    }

    /// Chunks from the first on that two views both read.
    fn common(&self, a: &View, b: &View) -> usize {
        self.chunks(a).iter().zip(self.chunks(b)).take_while(|(a, b)| self.same(a, b)).count()
    }

    /// An order in which views with the same first chunks are neighbours.
    fn compare(&self, a: &View, b: &View) -> Ordering {
        let (a, b) = (self.chunks(a), self.chunks(b));
        let unlike = a.iter().zip(b).find(|(a, b)| !self.same(a, b));
        unlike.map_or(a.len().cmp(&b.len()), |(a, b)| self.runs(a).cmp(self.runs(b)))
    }

    /// Cuts what the views `from .. to` read from chunk `done` on.
    fn cut(&self, order: &[u32], (from, to): (usize, usize), done: usize, into: &mut Vec<Stretch>) {
        let view = |at: usize| &self.views[order[at] as usize];
        // The views are sorted, so what the first and the last have in common all have.
        let end = if to - from == 1 {
            self.chunks(view(from)).len()
        } else {
            self.common(view(from), view(to - 1))
        };
        if end > done {
            into.push(Stretch { views: (from, to), chunks: (done, end) });
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
                self.cut(order, (start, stop), end, into);
            }
            start = stop;
        }
    }
}
