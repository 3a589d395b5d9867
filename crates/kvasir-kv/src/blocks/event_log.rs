//! `EventLog`: buffer of a prefix-cache index's KV events until `take`.
//!
//! Events identify block contents by hash: the caller reports a second block of equal content
//! neither as stored nor as removed.

use crate::blocks::hash::hash_with;
use crate::contract::ids::Token;
use crate::contract::kv_event::KvEvent;

/// Maximum number of tokens and hashes in a log.
const MAX_WORDS: usize = 1 << 20;

/// Bounded: if the log overflows, one `AllBlocksCleared` replaces its events. A mirror that applies
/// it then knows only a part of the cache's prefixes, and never one that the cache lacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    events: Vec<KvEvent>,
    /// Tokens and hashes in `events`.
    words: usize,
    /// Whether the newest event belongs to the current publication and may be extended.
    extends: bool,
    /// Scratch buffer of `hash_with`.
    scratch: Vec<u64>,
}

impl EventLog {
    /// Starts a publication; its consecutive blocks share one event.
    pub(crate) fn begin_publication(&mut self) {
        self.extends = false;
    }

    /// Records a block that was published to the index.
    pub(crate) fn stored(&mut self, hash: u64, parent: Option<u64>, block: &[Token]) {
        self.reserve(block.len() + 1);
        if let Some(KvEvent::BlockStored { hashes, tokens, .. }) = self.events.last_mut()
            && self.extends
            && hashes.last().copied() == parent
        {
            hashes.push(hash);
            tokens.extend_from_slice(block);
            return;
        }
        self.extends = true;
        let (hashes, tokens, block_size) = (vec![hash], block.to_vec(), block.len() as u32);
        self.events.push(KvEvent::BlockStored { hashes, parent, tokens, block_size });
    }

    /// Records one publication of successive blocks of `block_size` tokens, and appends their
    /// hashes to `hashes`. Without a `parent`, the first block is hashed after `root`.
    pub(crate) fn stored_all(
        &mut self,
        parent: Option<u64>,
        root: Option<u64>,
        tokens: &[Token],
        block_size: usize,
        hashes: &mut Vec<u64>,
    ) {
        self.begin_publication();
        let mut before = parent;
        for block in tokens.chunks_exact(block_size) {
            let hash = hash_with(before.or(root), block, &mut self.scratch);
            self.stored(hash, before, block);
            hashes.push(hash);
            before = Some(hash);
        }
    }

    /// Records blocks that lookups no longer find.
    pub(crate) fn removed(&mut self, removed: &[u64]) {
        if removed.is_empty() {
            return;
        }
        self.reserve(removed.len());
        self.extends = false;
        match self.events.last_mut() {
            Some(KvEvent::BlockRemoved { hashes }) => hashes.extend_from_slice(removed),
            _ => self.events.push(KvEvent::BlockRemoved { hashes: removed.to_vec() }),
        }
    }

    /// Records that the index was cleared, which supersedes all events in the log.
    pub(crate) fn cleared(&mut self) {
        self.events.clear();
        self.events.push(KvEvent::AllBlocksCleared);
        (self.words, self.extends) = (0, false);
    }

    /// Moves the events to `into`.
    pub(crate) fn take(&mut self, into: &mut Vec<KvEvent>) {
        into.append(&mut self.events);
        (self.words, self.extends) = (0, false);
    }

    fn reserve(&mut self, words: usize) {
        if self.words + words > MAX_WORDS {
            self.cleared();
        }
        self.words += words;
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::event_log::*;

    #[test]
    fn a_log_that_is_never_taken_is_bounded() {
        let mut log = EventLog::default();
        let mut most = 0;
        for n in 0..200_000 {
            log.stored(n, None, &[0; 16]);
            log.removed(&[n]);
            most = most.max(log.events.len());
        }
        assert!(most <= MAX_WORDS / 8, "{most}");
        let mut events = Vec::new();
        log.take(&mut events);
        assert_eq!(events[0], KvEvent::AllBlocksCleared);
        assert!(log.events.is_empty() && log.words == 0);
    }
}
