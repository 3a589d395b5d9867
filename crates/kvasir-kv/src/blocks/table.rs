use crate::BlockId;
use std::ops::Deref;

/// A sequence's blocks in order of position. It knows which of its changes were more than growth, so that who copied it can
/// tell whether only the end is new.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    blocks: Vec<BlockId>,
    /// The last block, at hand without a look into the list.
    last: BlockId,
    /// Counts changes other than growth.
    changes: u32,
    /// Leading entries that name themselves: entry `i` is block `i`.
    in_place: u32,
}

impl Deref for Table {
    type Target = [BlockId];
    fn deref(&self) -> &[BlockId] {
        &self.blocks
    }
}

impl Table {
    /// Lets the table grow at its end.
    pub(crate) fn grow(&mut self, grow: impl FnOnce(&mut Vec<BlockId>)) {
        grow(&mut self.blocks);
        self.note_end();
    }

    /// Changes anything.
    pub(crate) fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<BlockId>) -> T) -> T {
        let result = edit(&mut self.blocks);
        self.changes = self.changes.wrapping_add(1);
        self.in_place = 0;
        self.note_end();
        result
    }

    fn note_end(&mut self) {
        self.last = self.blocks.last().copied().unwrap_or(0);
        let rest = self.blocks.get(self.in_place as usize..).unwrap_or(&[]);
        let more = rest.iter().zip(self.in_place..).take_while(|&(&block, at)| block == at).count();
        self.in_place += more as u32;
    }

    /// Takes memory for a table of `blocks`.
    pub(crate) fn expect(&mut self, blocks: usize) {
        self.blocks.reserve(blocks.saturating_sub(self.blocks.len()));
    }

    /// The block at `at`, which must be there.
    pub(crate) fn block(&self, at: u32) -> BlockId {
        match at as usize + 1 == self.blocks.len() {
            true => self.last,
            false => self.blocks[at as usize],
        }
    }

    /// The last block.
    pub(crate) fn last(&self) -> Option<BlockId> {
        (!self.blocks.is_empty()).then_some(self.last)
    }

    /// Changes with every change that is not growth.
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
    use super::*;

    #[test]
    fn growth_is_no_change_and_everything_else_is() {
        let mut table = Table::default();
        assert_eq!(table.last(), None);
        table.grow(|blocks| blocks.extend([0, 1, 7]));
        assert_eq!((table.changes(), table.last()), (0, Some(7)));
        assert!(table.is_in_place(2) && !table.is_in_place(3));
        table.edit(|blocks| blocks[2] = 2);
        assert_eq!((table.changes(), table.last()), (1, Some(2)));
        assert!(table.is_in_place(3));
        table.grow(|blocks| blocks.push(3));
        assert!(table.is_in_place(4) && !table.is_in_place(5));
        table.edit(|blocks| blocks.truncate(1));
        assert_eq!((table.changes(), table.last(), &table[..]), (2, Some(0), &[0][..]));
        assert!(table.is_in_place(1) && !table.is_in_place(2));
    }
}
