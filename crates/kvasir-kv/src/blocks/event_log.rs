//! `EventLog`: the recorded KV events of a prefix-cache index, until they are taken.
//!
//! The log names contents, not blocks: a second block of equal content is neither stored nor removed.

use crate::blocks::hash::hash_with;
use crate::contract::ids::Token;
use crate::contract::kv_event::KvEvent;

/// Most tokens and hashes that a log holds.
const MOST_WORDS: usize = 1 << 20;

/// Recorded events until they are taken.
///
/// Bounded: a log that is not taken in time is replaced by one `AllBlocksCleared`, after which a mirror
/// holds a part of the cache's prefixes, never more.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    events: Vec<KvEvent>,
    /// Tokens and hashes in `events`.
    words: usize,
    /// Whether the newest event may be extended: it belongs to the same publication.
    extends: bool,
    /// Scratch memory of hashing.
    scratch: Vec<u64>,
}

impl EventLog {
    /// Begins a publication, whose consecutive blocks share one event.
    pub(crate) fn begin_publication(&mut self) {
        self.extends = false;
    }

    /// Records one block that has become reusable.
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

    /// Records successive blocks of `block_size` tokens, and appends their hashes to `hashes`.
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

    /// Records blocks that can no longer be found.
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

    /// Records that nothing can be found any longer; earlier events do not matter then.
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
        if self.words + words > MOST_WORDS {
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
        assert!(most <= MOST_WORDS / 8, "{most}");
        let mut events = Vec::new();
        log.take(&mut events);
        assert_eq!(events[0], KvEvent::AllBlocksCleared);
        assert!(log.events.is_empty() && log.words == 0);
    }
}
