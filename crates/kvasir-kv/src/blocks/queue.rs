//! `BlockQueue`: block ids in order of allocation, run-length encoded as ranges of consecutive ids.

use crate::contract::ids::BlockId;
use std::collections::VecDeque;
use std::ops::Range;

/// Order in which free blocks are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeOrder {
    /// The lowest id first, so a lightly used pool touches few memory pages.
    #[default]
    Lowest,
    /// First freed, first allocated, to reproduce block tables recorded from other engines.
    Oldest,
}

/// Block ids as ranges: blocks that come and go by the thousand form few ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockQueue {
    order: FreeOrder,
    ranges: VecDeque<Range<BlockId>>,
    len: u32,
}

impl BlockQueue {
    pub(crate) fn new(order: FreeOrder) -> Self {
        Self { order, ranges: VecDeque::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.ranges.iter().flat_map(Range::clone)
    }

    /// Adds blocks, and merges them with neighboring ranges. Linear in the ranges that come later,
    /// unless the order is [`FreeOrder::Oldest`].
    pub(crate) fn push(&mut self, blocks: Range<BlockId>) {
        if blocks.is_empty() {
            return;
        }
        self.len += blocks.len() as u32;
        let at = match self.order {
            FreeOrder::Oldest => self.ranges.len(),
            FreeOrder::Lowest => self.ranges.partition_point(|range| range.start < blocks.start),
        };
        if let Some(before) = at.checked_sub(1).and_then(|before| self.ranges.get_mut(before))
            && before.end == blocks.start
        {
            before.end = blocks.end;
            if let Some(after) = self.ranges.get(at).filter(|after| after.start == blocks.end).cloned() {
                self.ranges[at - 1].end = after.end;
                self.ranges.remove(at);
            }
        } else if let Some(after) = self.ranges.get_mut(at).filter(|after| after.start == blocks.end) {
            after.start = blocks.start;
        } else {
            self.ranges.insert(at, blocks);
        }
    }

    /// Takes the first block.
    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        self.pop_range(1).map(|blocks| blocks.start)
    }

    /// Takes up to `count` first blocks, as far as their ids are consecutive.
    pub(crate) fn pop_range(&mut self, count: u32) -> Option<Range<BlockId>> {
        let first = self.ranges.front_mut().filter(|_| count > 0)?;
        let taken = first.start..first.end.min(first.start.saturating_add(count));
        first.start = taken.end;
        self.len -= taken.len() as u32;
        if first.start == first.end {
            self.ranges.pop_front();
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::{Random, rounds};

    #[test]
    fn agrees_with_a_list_of_ids() {
        for order in [FreeOrder::Lowest, FreeOrder::Oldest] {
            let (mut free, mut model) = (BlockQueue::new(order), Vec::new());
            let mut taken: Vec<BlockId> = (0..400).collect();
            let mut random = Random::new(3);
            for _ in 0..rounds(3000) {
                if random.chance(50) && !taken.is_empty() {
                    let start = random.below(taken.len() as u64) as usize;
                    let first = taken[start];
                    let run = (first..).zip(&taken[start..]).take_while(|(id, next)| id == *next).count();
                    let count = random.between(1, run as u32 + 1).min(run as u32);
                    taken.drain(start..start + count as usize);
                    free.push(first..first + count);
                    model.extend(first..first + count);
                } else {
                    let wanted = random.between(0, 9);
                    let blocks = free.pop_range(wanted).unwrap_or(0..0);
                    assert!(blocks.len() as u32 <= wanted);
                    if order == FreeOrder::Lowest {
                        model.sort_unstable();
                    }
                    assert!(model.drain(..blocks.len()).eq(blocks.clone()), "{order:?}");
                    taken.extend(blocks);
                    taken.sort_unstable();
                }
                if order == FreeOrder::Lowest {
                    model.sort_unstable();
                    let apart = |two: (&Range<BlockId>, &Range<BlockId>)| two.0.end < two.1.start;
                    assert!(free.ranges.iter().zip(free.ranges.iter().skip(1)).all(apart));
                }
                assert_eq!(free.len() as usize, model.len());
                assert!(free.iter().eq(model.iter().copied()), "{order:?}");
            }
        }
    }
}
