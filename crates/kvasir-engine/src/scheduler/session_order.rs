//! `SessionOrder`: the eviction order of retained sessions.
//!
//! Sequences beyond the equal share of their client key in all retained tokens are evicted first,
//! then the others; both least recently used first. So a key with many sessions does not evict
//! those of others. The share of a key covers its most recently used sequences, as long as their
//! tokens fit.
//!
//! A share depends on all sequences, so `list` recomputes the order, in O(n log k) for n sequences
//! of k keys. Guarded by `tests/retained_sessions.rs`.

use kvasir_kv::{EvictionOrder, SeqId};
use std::collections::BTreeMap;

/// Client key and token count of a retained sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retained {
    /// The client key of its last request.
    pub(crate) key: u64,
    pub(crate) tokens: u64,
}

/// Retained sequences in order of eviction.
#[derive(Debug, Default)]
pub(crate) struct SessionOrder {
    /// Least recently used first.
    by_use: Vec<(SeqId, Retained)>,
    /// Scratch: tokens per key, whether each sequence exceeds its key's share, and the order.
    shares: BTreeMap<u64, u64>,
    exceeds: Vec<bool>,
    listed: Vec<SeqId>,
}

impl EvictionOrder for SessionOrder {
    type Id = SeqId;
    type Rank = Retained;

    fn on_release(&mut self, seq: SeqId, rank: Retained) {
        self.by_use.push((seq, rank));
    }

    fn on_use(&mut self, seq: SeqId) {
        self.by_use.retain(|(other, _)| *other != seq);
    }

    fn next(&mut self) -> Option<SeqId> {
        let first = self.list(None).first().copied()?;
        self.on_use(first);
        Some(first)
    }
}

impl SessionOrder {
    /// Changes the tokens of a sequence; its last use stays.
    pub(crate) fn resize(&mut self, seq: SeqId, tokens: u64) {
        let entry = self.by_use.iter_mut().find(|(other, _)| *other == seq);
        entry.into_iter().for_each(|(_, retained)| retained.tokens = tokens);
    }

    /// All sequences but one, in order of eviction.
    pub(crate) fn list(&mut self, except: Option<SeqId>) -> &[SeqId] {
        let Self { by_use, shares, exceeds, listed } = self;
        shares.clear();
        shares.extend(by_use.iter().map(|(_, retained)| (retained.key, 0)));
        let tokens: u64 = by_use.iter().map(|(_, retained)| retained.tokens).sum();
        let share = tokens / shares.len().max(1) as u64;
        exceeds.clear();
        exceeds.resize(by_use.len(), false);
        for ((_, retained), exceeds) in by_use.iter().zip(exceeds.iter_mut()).rev() {
            let sum = shares.entry(retained.key).or_default();
            *sum += retained.tokens;
            *exceeds = *sum > share;
        }
        listed.clear();
        for part in [true, false] {
            let of_part = by_use.iter().zip(&*exceeds).filter(|(_, exceeds)| **exceeds == part);
            listed.extend(of_part.map(|((seq, _), _)| *seq).filter(|seq| Some(*seq) != except));
        }
        listed
    }
}
