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

use crate::{Core, RequestId, Sequence, sequence::Moves, world::World};
use kvasir_kv::{Hit, SeqId, Token, VictimSearch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A session: requests that go on where another one ended. Who gives it out sees to it that no two conversations share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// What one session left: a sequence of the cache without a request, which always ends with a whole block.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) seq: SeqId,
    /// The tokens that its rows stand for.
    pub(crate) tokens: Vec<Token>,
    salt: u64,
    /// Larger is later.
    used: u64,
}

/// What all sessions left. It holds slots as running requests do, and gives them up to whoever runs.
#[derive(Debug, Default)]
pub(crate) struct KeptSessions {
    entries: BTreeMap<SessionId, Kept>,
    uses: u64,
    /// Counts everything that may let more slots come free: sequences closed or retained, leases
    /// ended.
    changes: u64,
    /// Steps in flight that may name a retained sequence.
    steps_in_flight: u32,
    /// The newest admission for which not all retained sequences together were enough.
    refused: Option<Refused>,
    /// The sequences to evict, as found last.
    victims: Vec<SeqId>,
    /// Memory to reuse.
    by_use: Vec<(u64, SeqId)>,
    candidates: Vec<SeqId>,
}

/// A search for victims that found none. It need not be repeated while `changes` stays.
#[derive(Clone, Copy, Debug)]
struct Refused {
    request: RequestId,
    slots: u32,
    changes: u64,
}

/// Slots that are missing, and what retained K/V may be given up for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shortage {
    pub(crate) slots: u32,
    /// What the request finds in the cache and takes over.
    pub(crate) hit: Hit,
    /// The request's own session, whose K/V is truncated to a length in any case.
    pub(crate) own: Option<(SessionId, u32)>,
    /// Whether slots count that a step in flight still names.
    pub(crate) leased_too: bool,
}

impl KeptSessions {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Kept)> {
        self.entries.iter().map(|(session, kept)| (*session, kept))
    }

    fn len_of(&self, session: SessionId) -> u32 {
        self.entries.get(&session).map_or(0, |kept| kept.tokens.len() as u32)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notes that more slots may come free than before.
    pub(crate) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Notes that a step has ended, which may have been the last to name a retained sequence.
    pub(crate) fn note_step(&mut self) {
        if self.steps_in_flight > 0 {
            self.steps_in_flight -= 1;
            self.note_change();
        }
    }

    fn insert(&mut self, session: SessionId, mut kept: Kept, steps_in_flight: u32) {
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

    /// Lists the sequences of all sessions but one, least recently used first.
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
    /// Slots of whole blocks within `tokens`.
    fn blocks_within(&self, tokens: u32) -> u32 {
        tokens / self.block * self.block
    }

    /// Keeps what an ending request of a session has computed, in place of what the session left before. The request then
    /// owns nothing in the cache.
    pub(crate) fn keep(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        let (Some(session), Some(seq)) = (sequence.rest.params.session, sequence.cache) else { return };
        let len = self.blocks_within(sequence.computed.min(sequence.tokens.len()));
        // Rows that a move is still to fill are not there yet.
        if len == 0 || sequence.moves != Moves::None {
            return;
        }
        // A step in flight may have claimed more; it writes what nobody will read.
        if self.cache.rewind().and_then(|face| face.rewind_to(seq, len)).is_err() {
            return;
        }
        self.forget(session);
        let sequence = &mut self.slab[entry];
        sequence.cache = None;
        let tokens = sequence.tokens.gather().iter().take(len as usize).copied().collect();
        let kept = Kept { seq, tokens, salt: sequence.rest.params.salt, used: 0 };
        self.kept.insert(session, kept, self.in_flight);
    }

    /// Says what is left of an ended request's session.
    pub(crate) fn tell_kept(&mut self, entry: u32) {
        if let Some(session) = self.slab[entry].rest.params.session {
            self.outbox.kept.push((session, self.kept.len_of(session)));
        }
    }

    /// Tokens of a waiting request that its session left, in whole blocks. Never all: the last one is always computed.
    pub(crate) fn kept_hit(&self, sequence: &Sequence) -> u32 {
        let kept = sequence.rest.params.session.and_then(|session| self.kept.entries.get(&session));
        let Some(kept) = kept.filter(|kept| kept.salt == sequence.rest.params.salt) else { return 0 };
        let most = sequence.tokens.len().saturating_sub(1);
        let same = sequence.tokens.common_prefix(&kept.tokens) as u32;
        self.blocks_within(same.min(most))
    }

    /// Tokens of what its session retained that a waiting request can go on from: none where it
    /// finds more elsewhere, or where the cache cannot go back so far.
    pub(crate) fn session_hit(&mut self, entry: u32, elsewhere: u32, limit: u32) -> u32 {
        let sequence = &self.slab[entry];
        let hit = self.blocks_within(self.kept_hit(sequence).min(limit));
        let kept = sequence.rest.params.session.and_then(|session| self.kept.entries.get(&session));
        let Some(kept) = kept.filter(|_| hit > 0 && hit >= elsewhere) else { return 0 };
        if hit as usize == kept.tokens.len() {
            return hit;
        }
        let lowest = self.cache.rewind().and_then(|face| face.lowest_rewind(kept.seq));
        if lowest.is_ok_and(|lowest| lowest <= hit) { hit } else { 0 }
    }

    /// Hands the first `len` retained tokens of a session over to its request, and gives up the
    /// others. With `len` 0 all are given up.
    pub(crate) fn take_kept(&mut self, entry: u32, len: u32) -> Option<(SeqId, u32)> {
        let session = self.slab[entry].rest.params.session?;
        self.cut_kept(session, len);
        let kept = self.kept.entries.remove(&session)?;
        Some((kept.seq, kept.tokens.len() as u32))
    }

    /// Drops what a session left from `len` on.
    fn cut_kept(&mut self, session: SessionId, len: u32) {
        let len = self.blocks_within(len);
        let Some(kept) = self.kept.entries.get_mut(&session) else { return };
        if len as usize >= kept.tokens.len() {
            return;
        }
        let cut = self.cache.rewind().and_then(|face| face.rewind_to(kept.seq, len));
        if len == 0 || cut.is_err() {
            return self.forget(session);
        }
        kept.tokens.truncate(len as usize);
        self.kept.note_change();
        self.outbox.kept.push((session, len));
    }

    /// Gives up what a session left.
    pub(crate) fn forget(&mut self, session: SessionId) {
        if let Some(kept) = self.kept.entries.remove(&session) {
            let closed = self.cache.close(kept.seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.kept.note_change();
            self.outbox.kept.push((session, 0));
        }
    }

    /// Evicts the least recently used session. False if there is none.
    pub(crate) fn evict_oldest(&mut self) -> bool {
        let oldest = self.kept.oldest();
        oldest.inspect(|session| self.forget(*session)).is_some()
    }

    /// Finds the retained sequences whose eviction lets enough slots come free, for
    /// [`World::evict_victims`]. False if there are not enough. Changes nothing else.
    pub(crate) fn find_victims(&mut self, shortage: Shortage) -> bool {
        self.kept.victims.clear();
        if self.kept.is_empty() {
            return false;
        }
        self.kept.list_candidates(shortage.own.map(|(session, _)| session));
        let own = shortage.own.and_then(|(session, len)| Some((self.kept.entries.get(&session)?.seq, len)));
        let search = VictimSearch {
            slots: shortage.slots,
            candidates: &self.kept.candidates,
            truncate: own,
            hit: shortage.hit,
            leased_too: shortage.leased_too,
        };
        self.cache.victims(&search, &mut self.kept.victims)
    }

    /// [`World::find_victims`] for the admission of `entry`. The answer is remembered if it is no:
    /// a request at the head of the queue asks again before every step.
    pub(crate) fn find_victims_for(&mut self, entry: u32, shortage: Shortage) -> bool {
        let (request, slots, changes) = (self.slab[entry].id, shortage.slots, self.kept.changes);
        let is_known = |refused: Refused| {
            refused.request == request && refused.changes == changes && slots >= refused.slots
        };
        let may_change = !self.running.is_empty() || self.in_flight > 0;
        if may_change && self.kept.refused.is_some_and(is_known) {
            return false;
        }
        let found = self.find_victims(shortage);
        if !found {
            self.kept.refused = Some(Refused { request, slots, changes });
        }
        found
    }

    /// No sequence need be evicted.
    pub(crate) fn clear_victims(&mut self) {
        self.kept.victims.clear();
    }

    /// Evicts what was found last.
    pub(crate) fn evict_victims(&mut self) {
        let mut victims = std::mem::take(&mut self.kept.victims);
        for seq in victims.drain(..) {
            let session = self.kept.entries.iter().find(|(_, kept)| kept.seq == seq);
            if let Some(session) = session.map(|(session, _)| *session) {
                self.forget(session);
            }
        }
        self.kept.victims = victims;
    }

    /// Lets `into` own the first `at` tokens of what `from` left; they stay where they are. Returns how many it owns.
    fn fork_kept(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        self.forget(into);
        let len = self.blocks_within(at.min(self.kept.len_of(from)));
        let Some(source) = self.kept.entries.get(&from).filter(|_| len > 0) else { return 0 };
        let (tokens, salt) = (source.tokens.iter().take(len as usize).copied().collect(), source.salt);
        let source = source.seq;
        // A cache of one sequence, or one that is full of them, shares nothing: the fork computes its own.
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
        self.kept.insert(into, Kept { seq, tokens, salt, used: 0 }, self.in_flight);
        len
    }
}

impl Core {
    /// Tokens whose K and V a session has in the cache while none of its requests runs.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.world.kept.len_of(session)
    }

    /// Lets session `into` begin with the first `at` tokens of what `from` left, without copying. What it got is in the
    /// outbox, and returned; it may be nothing.
    pub fn fork_session(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        let len = self.world.fork_kept(from, into, at);
        self.world.outbox.kept.push((into, len));
        len
    }

    /// Drops what a session left from token `to` on. What it has then is in the outbox.
    pub fn rewind_session(&mut self, session: SessionId, to: u32) {
        self.world.cut_kept(session, to);
        self.world.outbox.kept.push((session, self.world.kept.len_of(session)));
    }

    /// Ends a session: what it left is given up, and what runs under it leaves nothing.
    pub fn end_session(&mut self, session: SessionId) {
        self.world.forget(session);
        self.world.outbox.kept.push((session, 0));
        let of_it = |(entry, sequence): (u32, &Sequence)| {
            (sequence.rest.params.session == Some(session)).then_some(entry)
        };
        let entries: Vec<u32> = self.world.slab.iter().filter_map(of_it).collect();
        entries.into_iter().for_each(|entry| self.world.slab[entry].rest.params.session = None);
    }
}
