//! `Table`: the block table of one sequence, with a change counter for incremental copies and a
//! count of leading in-place blocks.
//!
//! Growth does not raise `changes`; every other edit does, so a plan that holds an older copy knows
//! whether appending suffices. `is_in_place` detects tables that are the blocks 0, 1, 2 .. for the
//! contiguous path.

use crate::contract::ids::BlockId;
use crate::shared::runs::leading;
use crate::shared::tail_buffered::TailBuffered;
use std::ops::Range;

/// The block table of one sequence. `changes` tells a holder of an older copy whether appending
/// suffices.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Table {
    /// Counts edits other than growth.
    changes: u32,
    /// Number of leading entries with entry `i` = block `i`.
    in_place: u32,
    blocks: TailBuffered,
}

impl Table {
    /// Appends blocks with consecutive ids.
    pub(crate) fn extend(&mut self, blocks: Range<BlockId>) {
        if self.is_in_place(self.blocks.len()) && blocks.start == self.blocks.len() {
            self.in_place += blocks.len() as u32;
        }
        self.blocks.edit(|list| list.extend(blocks));
    }

    /// Appends one block, without touching the heap part unless it is due.
    #[inline]
    pub(crate) fn push(&mut self, block: BlockId) {
        let at = self.blocks.len();
        self.blocks.push(block);
        self.in_place += u32::from(self.in_place == at && block == at);
    }

    /// Any edit other than growth; raises `changes`.
    pub(crate) fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<BlockId>) -> T) -> T {
        let result = self.blocks.edit(edit);
        self.changes = self.changes.wrapping_add(1);
        self.in_place = leading(self.blocks.heap(), |i, &block| block == i as u32) as u32;
        result
    }

    /// Reserves host memory for a table of `blocks`.
    pub(crate) fn reserve(&mut self, blocks: usize) {
        self.blocks.reserve(blocks.saturating_sub(self.blocks.len() as usize));
    }

    /// Whether growth by `blocks` touches the heap part.
    pub(crate) fn grows_heap(&self, blocks: u32) -> bool {
        blocks != 1 || self.blocks.is_due()
    }

    /// Prefetch by a dummy load of the end of the heap part.
    pub(crate) fn prefetch_end(&self) {
        self.blocks.prefetch_end();
    }

    /// Number of entries.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.blocks.len()
    }

    /// The entry at `at`, if it exists.
    pub(crate) fn get(&self, at: u32) -> Option<BlockId> {
        self.blocks.get(at)
    }

    /// The block at `at`; panics if it does not exist.
    #[inline]
    pub(crate) fn block(&self, at: u32) -> BlockId {
        if at + 1 == self.blocks.len() { self.blocks.newest() } else { self.blocks[at] }
    }

    /// The last block.
    pub(crate) fn last(&self) -> Option<BlockId> {
        (!self.blocks.is_empty()).then(|| self.blocks.newest())
    }

    /// The entries as heap and inline parts.
    #[inline]
    pub(crate) fn blocks(&self) -> &TailBuffered {
        &self.blocks
    }

    /// All entries as one slice; not counted as a change.
    pub(crate) fn gather(&mut self) -> &[BlockId] {
        self.blocks.gather()
    }

    /// Some entries.
    pub(crate) fn range(&self, range: Range<u32>) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.range(range)
    }

    /// Counter of edits other than growth.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Whether the first `blocks` entries are the blocks 0, 1, 2 ..
    pub(crate) fn is_in_place(&self, blocks: u32) -> bool {
        blocks <= self.in_place
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::table::*;

    #[test]
    fn only_growth_keeps_the_table_version() {
        let mut table = Table::default();
        assert_eq!(table.last(), None);
        table.extend(0..2);
        table.extend(7..8);
        assert_eq!((table.changes(), table.last()), (0, Some(7)));
        assert!(table.is_in_place(2) && !table.is_in_place(3));
        table.edit(|blocks| blocks[2] = 2);
        assert_eq!((table.changes(), table.last()), (1, Some(2)));
        assert!(table.is_in_place(3));
        table.push(3);
        assert!(table.is_in_place(4) && !table.is_in_place(5));
        assert_eq!((table.changes(), table.last(), table.len()), (1, Some(3), 4));
        table.extend(4..5);
        table.push(9);
        assert!(table.is_in_place(5) && !table.is_in_place(6));
        assert_eq!(
            (0..7).map(|at| table.get(at)).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 9].map(Some).into_iter().chain([None]).collect::<Vec<_>>()
        );
        table.edit(|blocks| blocks.truncate(1));
        assert_eq!((table.changes(), table.last(), table.gather()), (2, Some(0), &[0][..]));
        assert!(table.is_in_place(1) && !table.is_in_place(2));
    }
}
