//! Retained K/V of sessions: the cache sequence of a session's last request stays in the KV cache
//! for its next turn, until its slots are needed. Eviction is LRU.
//!
//! Invariants:
//!
//! - Retained K/V is truncated or evicted only for a request that is admitted or fed because of it.
//!   `World::find_victims` determines this beforehand and changes nothing.
//! - The cache counts the slots that an eviction frees: a block shared by several sessions is freed
//!   with its last owner.
//! - Retained sequences are evicted in least-recently-used order; one that would free nothing is
//!   skipped.
//! - A retained sequence ends at a block boundary and is reused only under the same tenant salt.
//!
//! Guarded by `tests/retained_sessions.rs` and `tests/sessions.rs`.

use crate::core::Core;
use crate::request::ids::{RequestId, SessionId};
use crate::request::sequence::{Moves, Sequence};
use crate::scheduler::state::World;
use kvasir_kv::{Hit, SeqId, Token, VictimSearch};
use std::collections::BTreeMap;

/// Retained K/V of one session: a cache sequence without a request, always ending at a block
/// boundary.
#[derive(Debug)]
pub(crate) struct RetainedSequence {
    pub(crate) seq: SeqId,
    /// The tokens whose K/V it holds.
    pub(crate) tokens: Vec<Token>,
    salt: u64,
    /// LRU stamp: larger is more recent.
    used: u64,
}

/// Retained K/V of all sessions. Its slots count as held by the cache and are evicted when running
/// requests need them.
#[derive(Debug, Default)]
pub(crate) struct RetainedSessions {
    entries: BTreeMap<SessionId, RetainedSequence>,
    uses: u64,
    /// Version counter of everything that may make more slots evictable: sequences closed or
    /// retained, leases ended.
    changes: u64,
    /// Upper bound on steps in flight that may name a retained sequence.
    steps_in_flight: u32,
    /// The latest admission that even evicting every retained sequence would not satisfy (negative
    /// cache).
    refused: Option<Refused>,
    /// The victims found by the last search.
    victims: Vec<SeqId>,
    /// Scratch memory.
    by_use: Vec<(u64, SeqId)>,
    candidates: Vec<SeqId>,
}

/// A victim search that failed. It need not be repeated while `changes` is unchanged.
#[derive(Clone, Copy, Debug)]
struct Refused {
    request: RequestId,
    slots: u32,
    changes: u64,
}

/// Missing slots, and which retained K/V may be evicted for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shortage {
    pub(crate) slots: u32,
    /// The cache hit of the request, which must not be evicted for it.
    pub(crate) hit: Hit,
    /// The request's own session and the length its retained K/V is truncated to in any case.
    pub(crate) own: Option<(SessionId, u32)>,
    /// Whether slots still leased by a step in flight count as freed.
    pub(crate) leased_too: bool,
}

impl RetainedSessions {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &RetainedSequence)> {
        self.entries.iter().map(|(session, kept)| (*session, kept))
    }

    fn len_of(&self, session: SessionId) -> u32 {
        self.entries.get(&session).map_or(0, |kept| kept.tokens.len() as u32)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Records that an eviction may free more slots than before.
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Records that a step has retired, which may have been the last to name a retained sequence.
    pub(crate) fn note_step(&mut self) {
        if self.steps_in_flight > 0 {
            self.steps_in_flight -= 1;
            self.note_change();
        }
    }

    /// Stores retained K/V as the most recently used.
    fn insert(&mut self, session: SessionId, mut kept: RetainedSequence, steps_in_flight: u32) {
        self.note_change();
        self.steps_in_flight = self.steps_in_flight.max(steps_in_flight);
        self.uses += 1;
        kept.used = self.uses;
        self.entries.insert(session, kept);
    }

    /// The least recently used session.
    fn oldest(&self) -> Option<SessionId> {
        self.entries.iter().min_by_key(|(_, kept)| kept.used).map(|(session, _)| *session)
    }

    /// Lists eviction candidates in LRU order: the sequences of all sessions except one.
    fn list_candidates(&mut self, except: Option<SessionId>) {
        self.by_use.clear();
        let others = self.entries.iter().filter(|(session, _)| Some(**session) != except);
        self.by_use.extend(others.map(|(_, kept)| (kept.used, kept.seq)));
        self.by_use.sort_unstable();
        self.candidates.clear();
        self.candidates.extend(self.by_use.iter().map(|(_, seq)| *seq));
    }
}

impl World {
    /// `tokens` rounded down to whole blocks.
    fn blocks_within(&self, tokens: u32) -> u32 {
        tokens / self.block * self.block
    }

    /// Retains the computed whole blocks of a finishing request for its session, replacing what the
    /// session had. The request then owns nothing in the cache.
    pub(crate) fn retain(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        let (Some(session), Some(seq)) = (sequence.cold.params.session, sequence.cache) else { return };
        let len = self.blocks_within(sequence.computed.min(sequence.tokens.len()));
        // Rows that a pending move has yet to fill are not valid.
        if len == 0 || sequence.moves != Moves::None {
            return;
        }
        // A step in flight may have claimed more; what it writes past `len` is never read.
        if self.cache.rewind().and_then(|face| face.rewind_to(seq, len)).is_err() {
            return;
        }
        self.forget(session);
        let sequence = &mut self.slab[entry];
        sequence.cache = None;
        let tokens = sequence.tokens.gather().iter().take(len as usize).copied().collect();
        let kept = RetainedSequence { seq, tokens, salt: sequence.cold.params.salt, used: 0 };
        self.retained.insert(session, kept, self.in_flight);
    }

    /// Reports the retained length of a finished request's session in the outbox.
    pub(crate) fn report_retained(&mut self, entry: u32) {
        if let Some(session) = self.slab[entry].cold.params.session {
            self.outbox.kept.push((session, self.retained.len_of(session)));
        }
    }

    /// Tokens of a waiting request that match its session's retained K/V, in whole blocks. Excludes
    /// the last token, whose logits are always needed.
    pub(crate) fn retained_hit(&self, sequence: &Sequence) -> u32 {
        let kept = sequence.cold.params.session.and_then(|session| self.retained.entries.get(&session));
        let Some(kept) = kept.filter(|kept| kept.salt == sequence.cold.params.salt) else { return 0 };
        let most = sequence.tokens.len().saturating_sub(1);
        let same = sequence.tokens.common_prefix(&kept.tokens) as u32;
        self.blocks_within(same.min(most))
    }

    /// Retained tokens that a waiting request can reuse. 0 if the prefix cache has a longer hit, or
    /// if the cache cannot rewind the sequence that far.
    pub(crate) fn session_hit(&mut self, entry: u32, elsewhere: u32, limit: u32) -> u32 {
        let sequence = &self.slab[entry];
        let hit = self.blocks_within(self.retained_hit(sequence).min(limit));
        let kept = sequence.cold.params.session.and_then(|session| self.retained.entries.get(&session));
        let Some(kept) = kept.filter(|_| hit > 0 && hit >= elsewhere) else { return 0 };
        if hit as usize == kept.tokens.len() {
            return hit;
        }
        let lowest = self.cache.rewind().and_then(|face| face.lowest_rewind(kept.seq));
        if lowest.is_ok_and(|lowest| lowest <= hit) { hit } else { 0 }
    }

    /// Transfers the first `len` retained tokens of a session to its request and drops the rest.
    /// With `len` 0 everything is dropped.
    pub(crate) fn take_retained(&mut self, entry: u32, len: u32) -> Option<(SeqId, u32)> {
        let session = self.slab[entry].cold.params.session?;
        self.truncate_retained(session, len);
        let kept = self.retained.entries.remove(&session)?;
        Some((kept.seq, kept.tokens.len() as u32))
    }

    /// Truncates a session's retained K/V to `len` tokens, rounded down to whole blocks.
    fn truncate_retained(&mut self, session: SessionId, len: u32) {
        let len = self.blocks_within(len);
        let Some(kept) = self.retained.entries.get_mut(&session) else { return };
        if len as usize >= kept.tokens.len() {
            return;
        }
        let cut = self.cache.rewind().and_then(|face| face.rewind_to(kept.seq, len));
        if len == 0 || cut.is_err() {
            return self.forget(session);
        }
        kept.tokens.truncate(len as usize);
        self.retained.note_change();
        self.outbox.kept.push((session, len));
    }

    /// Drops a session's retained K/V.
    pub(crate) fn forget(&mut self, session: SessionId) {
        if let Some(kept) = self.retained.entries.remove(&session) {
            let closed = self.cache.close(kept.seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.retained.note_change();
            self.outbox.kept.push((session, 0));
        }
    }

    /// Evicts the least recently used session. False if there is none.
    pub(crate) fn evict_oldest(&mut self) -> bool {
        let oldest = self.retained.oldest();
        oldest.inspect(|session| self.forget(*session)).is_some()
    }

    /// Victim search: the LRU retained sequences whose eviction frees enough slots, for
    /// `World::evict_victims`. False if all of them are not enough. Changes nothing else.
    pub(crate) fn find_victims(&mut self, shortage: Shortage) -> bool {
        self.retained.victims.clear();
        if self.retained.is_empty() {
            return false;
        }
        self.retained.list_candidates(shortage.own.map(|(session, _)| session));
        let own =
            shortage.own.and_then(|(session, len)| Some((self.retained.entries.get(&session)?.seq, len)));
        let search = VictimSearch {
            slots: shortage.slots,
            candidates: &self.retained.candidates,
            truncate: own,
            hit: shortage.hit,
            leased_too: shortage.leased_too,
        };
        self.cache.victims(&search, &mut self.retained.victims)
    }

    /// `World::find_victims` for the admission of `entry`. A negative answer is cached, because the
    /// head of the queue is tested again before every step.
    pub(crate) fn find_victims_for(&mut self, entry: u32, shortage: Shortage) -> bool {
        let (request, slots, changes) = (self.slab[entry].id, shortage.slots, self.retained.changes);
        let is_known = |refused: Refused| {
            refused.request == request && refused.changes == changes && slots >= refused.slots
        };
        let may_change = !self.running.is_empty() || self.in_flight > 0;
        if may_change && self.retained.refused.is_some_and(is_known) {
            return false;
        }
        let found = self.find_victims(shortage);
        if !found {
            self.retained.refused = Some(Refused { request, slots, changes });
        }
        found
    }

    /// Clears the victims: nothing needs to be evicted.
    pub(crate) fn clear_victims(&mut self) {
        self.retained.victims.clear();
    }

    /// Evicts the victims of the last search.
    pub(crate) fn evict_victims(&mut self) {
        let mut victims = std::mem::take(&mut self.retained.victims);
        for seq in victims.drain(..) {
            let session = self.retained.entries.iter().find(|(_, kept)| kept.seq == seq);
            if let Some(session) = session.map(|(session, _)| *session) {
                self.forget(session);
            }
        }
        self.retained.victims = victims;
    }

    /// Forks retained K/V: `into` shares the first `at` tokens of `from`, in whole blocks. Nothing
    /// is copied, and no copy-on-write follows, because shared blocks are full. Returns the shared
    /// length.
    fn fork_retained(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        self.forget(into);
        let len = self.blocks_within(at.min(self.retained.len_of(from)));
        let Some(source) = self.retained.entries.get(&from).filter(|_| len > 0) else { return 0 };
        let (tokens, salt) = (source.tokens.iter().take(len as usize).copied().collect(), source.salt);
        let source = source.seq;
        // A single-sequence cache, or one at its sequence limit, cannot share; the fork recomputes
        // its K/V.
        if self.cache.sequences().is_err() {
            return 0;
        }
        let Ok(seq) = self.cache.open() else { return 0 };
        let copied = self.cache.sequences().and_then(|face| face.copy(source, seq, 0..len));
        if copied.is_err() || self.cache.claimed_len(seq) != Ok(len) {
            let closed = self.cache.close(seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            return 0;
        }
        self.retained.insert(into, RetainedSequence { seq, tokens, salt, used: 0 }, self.in_flight);
        len
    }
}

impl Core {
    /// Retained tokens of a session; 0 while one of its requests runs.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.world.retained.len_of(session)
    }

    /// Forks a session without copying K/V: `into` starts with the first `at` retained tokens of
    /// `from`, in whole blocks. Returns the shared length, which may be 0, and reports it in the
    /// outbox.
    pub fn fork_session(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        let len = self.world.fork_retained(from, into, at);
        self.world.outbox.kept.push((into, len));
        len
    }

    /// Truncates a session's retained K/V to `to` tokens and reports the resulting length in the
    /// outbox.
    pub fn rewind_session(&mut self, session: SessionId, to: u32) {
        self.world.truncate_retained(session, to);
        self.world.outbox.kept.push((session, self.world.retained.len_of(session)));
    }

    /// Ends a session: drops its retained K/V, and its running requests will retain nothing.
    pub fn end_session(&mut self, session: SessionId) {
        self.world.forget(session);
        self.world.outbox.kept.push((session, 0));
        let of_it = |(entry, sequence): (u32, &Sequence)| {
            (sequence.cold.params.session == Some(session)).then_some(entry)
        };
        let entries: Vec<u32> = self.world.slab.iter().filter_map(of_it).collect();
        entries.into_iter().for_each(|entry| self.world.slab[entry].cold.params.session = None);
    }
}
