//! `Announced`: the block contents of a `HashIndex` that its KV events have announced, and their
//! log.
//!
//! A content is announced while lookups can reach it: at least one block holds it, and its parent
//! is announced. When the last block of a content is unpublished before its descendants, lookups
//! can no longer reach them (their parent's content number is never reused), so the event removes
//! them with it. Used only while events are recorded.

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
struct AnnouncedContent {
    hash: u64,
    /// Content number of the parent.
    parent: u64,
    /// Number of blocks that hold it.
    blocks: u32,
    /// Number of announced contents that follow it directly.
    children: u32,
}

/// Announced contents by number, and the log of their events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Announced {
    contents: HashMap<u64, AnnouncedContent, BuildHasherDefault<DefaultHasher>>,
    log: EventLog,
}

/// A block at its publication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedBlock<'a> {
    /// Content number, and hash of the block with its prefix.
    pub(crate) number: u64,
    pub(crate) hash: u64,
    /// Content number of the parent, and its hash unless it is [`ROOT`].
    pub(crate) parent: u64,
    pub(crate) parent_hash: Option<u64>,
    /// The tenant's salt.
    pub(crate) salt: u64,
    pub(crate) tokens: &'a [Token],
}

impl Announced {
    pub(crate) fn begin_publication(&mut self) {
        self.log.begin_publication();
    }

    /// A block was published after its parent's content.
    pub(crate) fn on_publish(&mut self, block: PublishedBlock<'_>) {
        let PublishedBlock { number, hash, parent, parent_hash, salt, tokens } = block;
        if let Some(known) = self.contents.get_mut(&number) {
            known.blocks += 1;
            // Each block is announced, also one whose content another has: readers keep a set.
            return self.log.stored(hash, parent_hash, salt, tokens);
        }
        if parent != ROOT {
            // Lookups do not reach a block whose parent they do not reach.
            let Some(parent_content) = self.contents.get_mut(&parent) else { return };
            parent_content.children += 1;
        }
        self.contents.insert(number, AnnouncedContent { hash, parent, blocks: 1, children: 0 });
        self.log.stored(hash, parent_hash, salt, tokens);
    }

    /// A block with the content `number` was unpublished.
    pub(crate) fn on_unpublish(&mut self, number: u64) {
        let Some(known) = self.contents.get_mut(&number) else { return };
        known.blocks -= 1;
        if known.blocks > 0 {
            return;
        }
        let AnnouncedContent { hash, parent, children, .. } = *known;
        self.contents.remove(&number);
        if let Some(parent_content) = self.contents.get_mut(&parent) {
            parent_content.children -= 1;
        }
        let mut removed = vec![hash];
        if children > 0 {
            self.remove_below(number, &mut removed);
        }
        self.log.removed(&removed);
    }

    /// Removes all descendants of `number`. Linear in all contents; rare, because chains are
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

    /// Moves the events to `into`. Returns whether the log had overflowed: the caller must then
    /// append events that store all contents, in the order of
    /// [`parents_first`](Self::parents_first).
    pub(crate) fn take(&mut self, into: &mut Vec<KvEvent>) -> bool {
        self.log.take(into)
    }

    /// Content number, hash and parent's hash of all announced contents, parents first.
    pub(crate) fn parents_first(&self) -> Vec<(u64, u64, Option<u64>)> {
        let hash_of = |parent: &u64| self.contents.get(parent).map(|content| content.hash);
        let content =
            |(number, content): (&u64, &AnnouncedContent)| (*number, content.hash, hash_of(&content.parent));
        let mut contents: Vec<_> = self.contents.iter().map(content).collect();
        // A child's number is higher than its parent's.
        contents.sort_unstable();
        contents
    }
}
