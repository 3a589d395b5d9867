//! `Announced`: the contents that KV events of a `HashIndex` have announced, with their log.
//!
//! A content is announced while the index can find it: one block or more hold it, and its parent is
//! announced, too. When the last block of a content goes while blocks that follow it stay, lookups
//! can no longer reach those (their parent's content number is never reused), so they are removed
//! with it. Used only while events are recorded.

use crate::blocks::event_log::EventLog;
use crate::contract::ids::Token;
use crate::contract::kv_event::KvEvent;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// Content number of the empty prefix.
pub(crate) const ROOT: u64 = 0;

/// An announced content.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: u64,
    /// Content number of the block before.
    parent: u64,
    /// Blocks that hold it.
    blocks: u32,
    /// Announced contents that follow it.
    children: u32,
}

/// Announced contents by number, and the log of their events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced {
    contents: HashMap<u64, Known, BuildHasherDefault<DefaultHasher>>,
    log: EventLog,
}

impl Announced {
    pub(crate) fn begin_publication(&mut self) {
        self.log.begin_publication();
    }

    /// A block has got the content `(number, hash)` after its parent's content number and hash.
    pub(crate) fn on_publish(
        &mut self,
        (number, hash): (u64, u64),
        (parent, parent_hash): (u64, Option<u64>),
        tokens: &[Token],
    ) {
        if let Some(known) = self.contents.get_mut(&number) {
            known.blocks += 1;
            return;
        }
        if parent != ROOT {
            // A block behind content that lookups no longer reach is not reached either.
            let Some(above) = self.contents.get_mut(&parent) else { return };
            above.children += 1;
        }
        self.contents.insert(number, Known { hash, parent, blocks: 1, children: 0 });
        self.log.stored(hash, parent_hash, tokens);
    }

    /// A block has lost the content `number`.
    pub(crate) fn on_unpublish(&mut self, number: u64) {
        let Some(known) = self.contents.get_mut(&number) else { return };
        known.blocks -= 1;
        if known.blocks > 0 {
            return;
        }
        let Known { hash, parent, children, .. } = *known;
        self.contents.remove(&number);
        if let Some(above) = self.contents.get_mut(&parent) {
            above.children -= 1;
        }
        let mut removed = vec![hash];
        if children > 0 {
            self.remove_below(number, &mut removed);
        }
        self.log.removed(&removed);
    }

    /// Removes all contents that follow `number`. Linear in all contents; rare, because chains are
    /// evicted leaf first.
    fn remove_below(&mut self, number: u64, removed: &mut Vec<u64>) {
        let mut below = HashMap::<u64, Vec<u64>>::new();
        for (&child, known) in &self.contents {
            below.entry(known.parent).or_default().push(child);
        }
        let mut parents = vec![number];
        while let Some(parent) = parents.pop() {
            for child in below.remove(&parent).unwrap_or_default() {
                removed.extend(self.contents.remove(&child).map(|known| known.hash));
                parents.push(child);
            }
        }
    }

    pub(crate) fn on_forget(&mut self) {
        self.contents.clear();
        self.log.cleared();
    }

    pub(crate) fn take(&mut self, into: &mut Vec<KvEvent>) {
        self.log.take(into);
    }
}
