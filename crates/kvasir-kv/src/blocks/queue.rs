//! `BlockQueue`: a FIFO of block ids, run-length encoded as ranges of consecutive ids.

use crate::contract::ids::BlockId;
use std::collections::VecDeque;
use std::ops::Range;

/// A FIFO of block ids as ranges: blocks that come and go by the thousand form few ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockQueue {
    ranges: VecDeque<Range<BlockId>>,
    len: u32,
}

impl BlockQueue {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        self.ranges.iter().flat_map(Range::clone)
    }

    /// Appends blocks; merges them with the last range if consecutive.
    pub(crate) fn push(&mut self, blocks: Range<BlockId>) {
        self.len += blocks.len() as u32;
        match self.ranges.back_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ if blocks.is_empty() => {}
            _ => self.ranges.push_back(blocks),
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
    use crate::blocks::queue::*;
    use kvasir_testkit::{Random, rounds};

    #[test]
    fn agrees_with_a_queue_of_ids() {
        let (mut free, mut model) = (BlockQueue::default(), VecDeque::new());
        let mut random = Random::new(3);
        for _ in 0..rounds(3000) {
            let state = random.bits();
            let (first, count) = ((state >> 40) as u32 % 40, (state >> 33) as u32 % 7);
            match state >> 20 & 1 {
                0 => {
                    free.push(first..first + count);
                    model.extend(first..first + count);
                }
                _ => {
                    let taken = free.pop_range(count);
                    let ids: Vec<_> = taken.iter().flat_map(Range::clone).collect();
                    assert_eq!(ids.is_empty(), count == 0 || model.is_empty());
                    assert!(ids.len() <= count as usize && ids.iter().eq(model.iter().take(ids.len())));
                    model.drain(..ids.len());
                }
            }
            if state >> 50 & 3 == 0 {
                assert_eq!(free.pop(), model.pop_front());
            }
            assert_eq!(free.len() as usize, model.len());
            assert!(free.iter().eq(model.iter().copied()));
        }
    }
}
