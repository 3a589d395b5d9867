//! Pool usage: slots by state in total (`PoolUsage`), and the state of each block (`BlockUse`).

use serde::{Deserialize, Serialize};

/// Pool usage in slots. `free + evictable + held + leased` is the capacity; dummy slots are not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUsage {
    /// Unreferenced slots without cached content.
    pub free: u32,
    /// Unreferenced slots that hold a cached prefix; allocated (evicted) after the free ones.
    pub evictable: u32,
    /// Slots that live sequences own.
    pub held: u32,
    /// Slots released by their owners that a step in flight still names.
    pub leased: u32,
}

impl PoolUsage {
    /// Slots that a claim can allocate now: free plus evictable.
    pub fn available(self) -> u32 {
        self.free + self.evictable
    }

    /// `Inspect::visit_blocks` of a pool that allocates from slot 0 upward.
    pub(crate) fn visit_contiguous(self, slots: &mut Vec<BlockUse>) {
        slots.clear();
        for (n, used) in
            [(self.held, BlockUse::Held), (self.leased, BlockUse::Leased), (self.free, BlockUse::Free)]
        {
            slots.resize(slots.len() + n as usize, used);
        }
    }
}

/// State of one block (or cell).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockUse {
    /// Unreferenced and without content.
    Free,
    /// Unreferenced, holds a cached prefix, evictable.
    Cached,
    /// Owned by live sequences.
    Held,
    /// Released by its owners; a step in flight still names it.
    Leased,
    /// Takes redirected writes; never allocated.
    Dummy,
}
