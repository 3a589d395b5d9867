//! `LruHeap`: the eviction order of `radix`, an indexed 4-ary min-heap of node ids by last use.
//! Update and removal of any id take O(log n).

use crate::shared::eviction_order::EvictionOrder;

const NOWHERE: u32 = u32::MAX;

/// Nodes by last use, oldest on top: a 4-ary min-heap with the heap index of each node.
#[derive(Clone, Debug, Default)]
pub(crate) struct LruHeap {
    heap: Vec<(u64, u32)>,
    /// Heap index of each node.
    place: Vec<u32>,
}

impl LruHeap {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    #[inline]
    pub(crate) fn contains(&self, node: u32) -> bool {
        self.place.get(node as usize).is_some_and(|&at| at != NOWHERE)
    }

    /// Updates the last use of a node, which must not be earlier; no effect if it is not in the
    /// heap.
    #[inline]
    pub(crate) fn touch(&mut self, node: u32, time: u64) {
        if self.contains(node) {
            let at = self.place[node as usize] as usize;
            self.heap[at].0 = time;
            self.sift_down(at);
        }
    }

    /// Sift up; returns the new index.
    fn rise(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 {
            let above = (at - 1) / 4;
            if self.heap[above] <= entry {
                break;
            }
            self.set(at, self.heap[above]);
            at = above;
        }
        self.set(at, entry);
        at
    }

    /// Sift down.
    fn sift_down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let below = 4 * at + 1..(4 * at + 5).min(self.heap.len());
            match below.min_by_key(|&child| self.heap[child]) {
                Some(least) if self.heap[least] < entry => {
                    self.set(at, self.heap[least]);
                    at = least;
                }
                _ => break,
            }
        }
        self.set(at, entry);
    }

    fn set(&mut self, at: usize, entry: (u64, u32)) {
        self.heap[at] = entry;
        self.place[entry.1 as usize] = at as u32;
    }
}

impl EvictionOrder for LruHeap {
    type Id = u32;
    /// Time of the last use.
    type Rank = u64;

    #[inline]
    fn on_release(&mut self, node: u32, time: u64) {
        if self.place.len() <= node as usize {
            self.place.resize(node as usize + 1, NOWHERE);
        }
        self.heap.push((time, node));
        self.rise(self.heap.len() - 1);
    }

    /// No effect if the node is not in the heap.
    #[inline]
    fn on_use(&mut self, node: u32) {
        if !self.contains(node) {
            return;
        }
        let at = std::mem::replace(&mut self.place[node as usize], NOWHERE) as usize;
        let Some(last) = self.heap.pop() else { return };
        if at < self.heap.len() {
            self.heap[at] = last;
            let at = self.rise(at);
            self.sift_down(at);
        }
    }

    fn next(&mut self) -> Option<u32> {
        let &(_, node) = self.heap.first()?;
        self.on_use(node);
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::radix::lru_heap::*;
    use kvasir_testkit::{Random, rounds};
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_sorted_list() {
        let (mut heap, mut model) = (LruHeap::default(), BTreeMap::new());
        let mut random = Random::new(3);
        for time in 0..rounds(20_000) {
            let state = random.bits();
            let node = (state >> 33) as u32 % 200;
            match (state >> 20 & 3, model.contains_key(&node)) {
                (0, true) => {
                    heap.on_use(node);
                    model.remove(&node);
                }
                (1, true) => {
                    heap.touch(node, time);
                    model.insert(node, time);
                }
                (2, _) => {
                    let first = model.iter().min_by_key(|(_, time)| **time).map(|(node, _)| *node);
                    assert_eq!(heap.next(), first);
                    first.map(|node| model.remove(&node));
                }
                (_, false) => {
                    // Nodes re-enter with old times when they become leaves.
                    let time = time - state % (time + 1).min(50) / 2 * 2;
                    if !model.values().any(|&other| other == time) {
                        heap.on_release(node, time);
                        model.insert(node, time);
                    }
                }
                _ => {}
            }
            assert_eq!(heap.len(), model.len());
            assert_eq!(heap.contains(node), model.contains_key(&node));
        }
    }
}
