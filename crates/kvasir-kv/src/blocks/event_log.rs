//! `EventLog`: buffer of a prefix-cache index's KV events until `take`.
//!
//! Events identify block contents by hash: the caller reports a second block of equal content
//! neither as stored nor as removed.

use crate::blocks::hash::{hash_with, root_hash};
use crate::contract::ids::Token;
use crate::contract::kv_event::KvEvent;

/// Maximum number of tokens and hashes in a log.
const MAX_WORDS: usize = 1 << 20;

/// Bounded: if the log overflows, one `AllBlocksCleared` replaces its events, and no more are
/// recorded until `take`. The caller of `take` then stores all contents of the index again.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    events: Vec<KvEvent>,
    max_words: usize,
    has_overflowed: bool,
    /// Tokens and hashes in `events`.
    words: usize,
    /// Whether the newest event belongs to the current publication and may be extended.
    extends: bool,
    /// Scratch buffer of `hash_with`.
    scratch: Vec<u64>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self::with_limit(MAX_WORDS)
    }
}

impl EventLog {
    /// A log of at most `max_words` tokens and hashes.
    pub(crate) fn with_limit(max_words: usize) -> Self {
        let (events, scratch) = (Vec::new(), Vec::new());
        Self { events, max_words, has_overflowed: false, words: 0, extends: false, scratch }
    }

    /// Starts a publication; its consecutive blocks share one event.
    pub(crate) fn begin_publication(&mut self) {
        self.extends = false;
    }

    /// Records a block that was published to the index. `salt` is the tenant's.
    pub(crate) fn stored(&mut self, hash: u64, parent: Option<u64>, salt: u64, block: &[Token]) {
        if !self.reserve(block.len() + 1) {
            return;
        }
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
        let salt = if parent.is_none() { salt } else { 0 };
        self.events.push(KvEvent::BlockStored { hashes, parent, tokens, block_size, salt });
    }

    /// Records one publication of successive blocks of `block_size` tokens, and appends their
    /// hashes to `hashes`. Without a `parent`, the first block is hashed after the root of `salt`.
    pub(crate) fn stored_all(
        &mut self,
        parent: Option<u64>,
        salt: u64,
        tokens: &[Token],
        block_size: usize,
        hashes: &mut Vec<u64>,
    ) {
        self.begin_publication();
        let mut before = parent;
        for block in tokens.chunks_exact(block_size) {
            let hash = hash_with(before.or(root_hash(salt)), block, &mut self.scratch);
            self.stored(hash, before, salt, block);
            hashes.push(hash);
            before = Some(hash);
        }
    }

    /// Records blocks that lookups no longer find.
    pub(crate) fn removed(&mut self, removed: &[u64]) {
        if removed.is_empty() || !self.reserve(removed.len()) {
            return;
        }
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
        (self.words, self.extends, self.has_overflowed) = (0, false, false);
    }

    /// Moves the events to `into`. Returns whether the log had overflowed: the last event is then
    /// `AllBlocksCleared`, and the caller must append events that store the contents of the index.
    pub(crate) fn take(&mut self, into: &mut Vec<KvEvent>) -> bool {
        into.append(&mut self.events);
        (self.words, self.extends) = (0, false);
        std::mem::take(&mut self.has_overflowed)
    }

    /// Counts the words of an event; false if the log has overflowed and must not record it.
    fn reserve(&mut self, words: usize) -> bool {
        if !self.has_overflowed && self.words + words > self.max_words {
            self.cleared();
            self.has_overflowed = true;
        }
        self.words += words;
        !self.has_overflowed
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
            log.stored(n, None, 0, &[0; 16]);
            log.removed(&[n]);
            most = most.max(log.events.len());
        }
        assert!(most <= MAX_WORDS / 8, "{most}");
        let mut events = Vec::new();
        assert!(log.take(&mut events), "the overflow is reported");
        assert_eq!(events, [KvEvent::AllBlocksCleared]);
        assert!(log.events.is_empty() && log.words == 0);
        log.stored(1, None, 7, &[0; 16]);
        log.stored(2, Some(1), 7, &[0; 16]);
        assert!(!log.take(&mut events));
        let KvEvent::BlockStored { hashes, salt, .. } = &events[1] else { panic!("{events:?}") };
        assert_eq!((&hashes[..], *salt), (&[1, 2][..], 7));
    }
}
