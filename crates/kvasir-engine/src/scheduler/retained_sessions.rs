//! Retained K/V of sessions: the cache sequence of a session's last request stays in the KV cache
//! for its next turn, until its slots are needed.
//!
//! `SessionOrder` decides which session is evicted first.
//!
//! Invariants:
//!
//! - Retained K/V is truncated or evicted only for a request that is admitted or fed because of it.
//!   `find_victims` determines this beforehand and changes nothing. Exception: if the pool is full
//!   and recent admissions are of several keys, at most half of it stays retained (`demote_to`).
//! - The cache counts the slots that an eviction frees: a block shared by several sessions is freed
//!   with its last owner.
//! - Retained sequences are evicted in the order of `SessionOrder`; one that would free nothing is
//!   skipped.
//! - A retained sequence ends at a block boundary and is reused only under the same tenant salt.
//! - With recurrent states, a retained sequence ends at a checkpoint, which is not evicted, and
//!   holds no live state. Retained sequences use at most half of the checkpoints.
//! - With window groups, a retained sequence is dropped if the window rows before its new end were
//!   released.
//!
//! Guarded by `tests/retained_sessions.rs` and `tests/sessions.rs`.

use crate::request::gaps::Gaps;
use crate::request::ids::{RequestId, SessionId};
use crate::request::sequence::{Sequence, SlotCopies};
use crate::scheduler::idle_sequence::{copy_idle, rewindable_len, truncate_idle};
use crate::scheduler::session_order::{Retained, SessionOrder};
use kvasir_kv::{Cache, CacheShape, EvictionOrder, GroupId, Hit, SeqId, Token, VictimSearch};
use std::collections::BTreeMap;
use std::ops::Range;

/// Retained K/V of one session: a cache sequence without a request, always ending at a block
/// boundary.
#[derive(Debug)]
pub(crate) struct RetainedSequence {
    pub(crate) seq: SeqId,
    /// The tokens whose K/V it holds.
    pub(crate) tokens: Vec<Token>,
    /// Positions that were cut out between them.
    pub(crate) gaps: Gaps,
    salt: u64,
    /// The client key of its last request.
    key: u64,
}

/// Retained K/V of all sessions. Its slots count as held by the cache and are evicted when running
/// requests need them. Methods that change it are given the cache that holds it.
#[derive(Debug, Default)]
pub(crate) struct RetainedSessions {
    entries: BTreeMap<SessionId, RetainedSequence>,
    block: u32,
    /// Most positions of a sequence with gaps; 0 if none may have gaps.
    max_positions: u32,
    /// Maximum number of retained sequences.
    max_sequences: usize,
    /// The sequences of all entries.
    order: SessionOrder,
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
    /// Retained lengths that changed and are not in the outbox yet.
    reports: Vec<(SessionId, u32)>,
    /// Slots that only retained sequences own, as last counted.
    slots: u32,
    /// Whether the retained sequences have changed since `slots` was counted.
    is_recount_due: bool,
    /// Calls of `recount_slots` since `slots` was counted.
    uncounted: u32,
}

/// Calls of `recount_slots` (one per step) between counts while the retained sequences are
/// unchanged: requests may begin or cease to share their slots.
const RECOUNT_EVERY: u32 = 16;

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
    /// The layer group that lacks `slots`.
    pub(crate) group: GroupId,
    pub(crate) slots: u32,
    /// The cache hit of the request, which must not be evicted for it.
    pub(crate) hit: Hit,
    /// The request's own session and the length its retained K/V is truncated to in any case.
    pub(crate) own: Option<(SessionId, u32)>,
    /// Whether slots still leased by a step in flight count as freed.
    pub(crate) leased_too: bool,
}

impl RetainedSessions {
    /// Creates an empty set. A retained sequence with gaps in its positions has at most
    /// `max_positions` positions; 0 excludes gaps.
    pub(crate) fn new(shape: &CacheShape, max_positions: u32) -> Self {
        let max_sequences =
            shape.states.map_or(usize::MAX, |states| (states.checkpoints / 2).max(1) as usize);
        let max_positions = if shape.states.is_some() { 0 } else { max_positions };
        Self { block: shape.block_size.max(1), max_positions, max_sequences, ..Self::default() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &RetainedSequence)> {
        self.entries.iter().map(|(session, retained)| (*session, retained))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Most positions of a sequence with gaps; 0 if none may have gaps.
    pub(crate) fn max_positions(&self) -> u32 {
        self.max_positions
    }

    /// Retained tokens of a session.
    pub(crate) fn len_of(&self, session: SessionId) -> u32 {
        self.entries.get(&session).map_or(0, |retained| retained.tokens.len() as u32)
    }

    /// Slots that only retained sequences own, as of the last `recount_slots`.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Counts the slots that only retained sequences own, if these have changed; otherwise every
    /// `RECOUNT_EVERY` calls.
    pub(crate) fn recount_slots(&mut self, cache: &mut dyn Cache) {
        self.uncounted += 1;
        if self.entries.is_empty() {
            (self.slots, self.is_recount_due) = (0, false);
        } else if self.is_recount_due || self.uncounted >= RECOUNT_EVERY {
            self.slots = self.count_slots(cache);
            (self.is_recount_due, self.uncounted) = (false, 0);
        }
    }

    /// Counts the slots that only retained sequences own. A slot that several sessions share counts
    /// once.
    fn count_slots(&mut self, cache: &mut dyn Cache) -> u32 {
        cache.slots_held_by(self.order.list(None))[GroupId::FULL.index()]
    }

    /// Retained lengths that changed since the last call, in order.
    pub(crate) fn take_reports(&mut self) -> std::vec::Drain<'_, (SessionId, u32)> {
        self.reports.drain(..)
    }

    /// Reports the retained length of a session.
    pub(crate) fn report(&mut self, session: SessionId) {
        self.reports.push((session, self.len_of(session)));
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
    fn insert(&mut self, session: SessionId, retained: RetainedSequence, steps_in_flight: u32) {
        self.note_change();
        self.is_recount_due = true;
        self.steps_in_flight = self.steps_in_flight.max(steps_in_flight);
        let rank = Retained { key: retained.key, tokens: retained.tokens.len() as u64 };
        self.order.on_release(retained.seq, rank);
        self.entries.insert(session, retained);
    }

    /// Retains the computed whole blocks of a finishing request for its session, replacing what the
    /// session had. The request then owns nothing in the cache.
    pub(crate) fn retain(&mut self, cache: &mut dyn Cache, sequence: &mut Sequence, steps_in_flight: u32) {
        let (Some(session), Some(seq)) = (sequence.cold.params.session, sequence.cache) else { return };
        let len = sequence.cold.gaps.whole_blocks(sequence.computed.min(sequence.tokens.len()), self.block);
        // Slots that a pending copy has yet to fill are not valid.
        if len == 0 || sequence.copies != SlotCopies::None {
            return;
        }
        self.evict_excess(cache);
        // A step in flight may have claimed more; what it writes past `len` is never read.
        let len = truncate_idle(cache, seq, &sequence.cold.gaps, len);
        if len == 0 {
            return;
        }
        sequence.cold.gaps.truncate(len);
        self.evict(cache, session);
        sequence.cache = None;
        let tokens = sequence.tokens.gather().iter().take(len as usize).copied().collect();
        let (salt, key) = (sequence.cold.params.salt, sequence.cold.params.key);
        let gaps = std::mem::take(&mut sequence.cold.gaps);
        let retained = RetainedSequence { seq, tokens, gaps, salt, key };
        self.insert(session, retained, steps_in_flight);
    }

    /// Retains the pinned prefixes of a finishing request, without copying K/V. A pin whose prefix was
    /// retained before is renewed. Nothing is pinned of a sequence with gaps, whose K/V no other
    /// request finds.
    pub(crate) fn pin(&mut self, cache: &mut dyn Cache, sequence: &Sequence, steps_in_flight: u32) {
        let params = &sequence.cold.params;
        let is_copied = sequence.copies == SlotCopies::None;
        let Some(seq) = sequence.cache.filter(|_| is_copied && !params.pins.is_empty()) else { return };
        if sequence.cold.gaps.before(sequence.computed) > 0 || cache.sequences().is_err() {
            return;
        }
        for pin in &params.pins {
            self.evict(cache, pin.session);
            let len = pin.len.min(sequence.computed).min(sequence.intact());
            let len = sequence.cold.gaps.whole_blocks(len, self.block);
            self.evict_excess(cache);
            let Some((into, len)) = copy_idle(cache, seq, &Gaps::default(), len) else { continue };
            let tokens = sequence.prompt().iter().take(len as usize).copied().collect();
            let (salt, key, gaps) = (params.salt, params.key, Gaps::default());
            let retained = RetainedSequence { seq: into, tokens, gaps, salt, key };
            self.insert(pin.session, retained, steps_in_flight);
            self.report(pin.session);
        }
    }

    fn of(&self, sequence: &Sequence) -> Option<&RetainedSequence> {
        sequence.cold.params.session.and_then(|session| self.entries.get(&session))
    }

    /// Tokens of a waiting request that match its session's retained K/V, in whole blocks. Excludes
    /// the last token, whose logits are always needed.
    fn matched(&self, sequence: &Sequence) -> u32 {
        let same_salt = |retained: &&RetainedSequence| retained.salt == sequence.cold.params.salt;
        let Some(retained) = self.of(sequence).filter(same_salt) else { return 0 };
        let most = sequence.tokens.len().saturating_sub(1);
        let same = (sequence.tokens.common_prefix(&retained.tokens) as u32).min(most);
        let hit = retained.gaps.whole_blocks(same, self.block);
        let skipped = retained.gaps.before(hit);
        // The positions of a shifted context are consecutive.
        if skipped == 0 || sequence.dropped == 0 && self.has_positions_for(sequence, skipped) {
            hit
        } else {
            retained.gaps.whole_blocks(retained.gaps.without(same), self.block)
        }
    }

    /// Whether a request may skip `skipped` positions: `max_tokens` outputs still fit behind them, or
    /// the answer would end at the model's limit without them, too.
    fn has_positions_for(&self, sequence: &Sequence, skipped: u32) -> bool {
        let left = self.max_positions.saturating_sub(sequence.prompt_len + skipped);
        let most = sequence.cold.params.max_tokens;
        left > 0 && (most <= left || most >= sequence.cold.context_left)
    }

    /// Positions that a request skips if it takes over `tokens` of its session's retained ones.
    pub(crate) fn skipped(&self, sequence: &Sequence, tokens: u32) -> u32 {
        self.of(sequence).map_or(0, |retained| retained.gaps.before(tokens))
    }

    /// Number of retained tokens that a waiting request can reuse, at most `limit`, and number of
    /// those that match it. The former is 0 if the prefix cache has a longer hit (`prefix_hit`), or
    /// if the cache cannot rewind the sequence that far.
    pub(crate) fn reusable(
        &self,
        cache: &mut dyn Cache,
        sequence: &Sequence,
        prefix_hit: u32,
        limit: u32,
    ) -> (u32, u32) {
        let Some(retained) = self.of(sequence) else { return (0, 0) };
        let matched = self.matched(sequence);
        let hit = retained.gaps.whole_blocks(matched.min(limit), self.block);
        let hit = if hit > 0 && (hit as usize) < retained.tokens.len() {
            rewindable_len(cache, retained.seq, &retained.gaps, hit)
        } else {
            hit
        };
        (if hit < prefix_hit { 0 } else { hit }, matched)
    }

    /// Evicts sessions, in eviction order, until another sequence may be retained.
    fn evict_excess(&mut self, cache: &mut dyn Cache) {
        while self.entries.len() >= self.max_sequences && self.evict_oldest(cache) {}
    }

    /// Transfers the first `len` retained tokens of a session to its request and drops the rest.
    /// With `len` 0 everything is dropped.
    pub(crate) fn take(
        &mut self,
        cache: &mut dyn Cache,
        session: SessionId,
        len: u32,
    ) -> Option<RetainedSequence> {
        self.truncate(cache, session, len);
        self.is_recount_due = true;
        self.entries.remove(&session).inspect(|retained| self.order.on_use(retained.seq))
    }

    /// Truncates a session's retained K/V to `len` tokens, rounded down to whole blocks.
    pub(crate) fn truncate(&mut self, cache: &mut dyn Cache, session: SessionId, len: u32) {
        let Some(retained) = self.entries.get_mut(&session) else { return };
        let len = retained.gaps.whole_blocks(len.min(retained.tokens.len() as u32), self.block);
        if len as usize >= retained.tokens.len() {
            return;
        }
        let len = truncate_idle(cache, retained.seq, &retained.gaps, len);
        if len == 0 {
            return self.evict(cache, session);
        }
        retained.tokens.truncate(len as usize);
        self.is_recount_due = true;
        self.order.resize(retained.seq, u64::from(len));
        retained.gaps.truncate(len);
        self.note_change();
        self.report(session);
    }

    /// Drops a session's retained K/V.
    pub(crate) fn evict(&mut self, cache: &mut dyn Cache, session: SessionId) {
        if let Some(retained) = self.entries.get(&session) {
            self.order.on_use(retained.seq);
            self.close(cache, session);
        }
    }

    /// Evicts the first session in eviction order. False if there is none.
    pub(crate) fn evict_oldest(&mut self, cache: &mut dyn Cache) -> bool {
        let session = self.order.next().and_then(|seq| self.session_of(seq));
        session.inspect(|session| self.close(cache, *session)).is_some()
    }

    /// Evicts sessions other than `except`, in eviction order, until at most `slots` slots belong to
    /// retained sequences only. A slot that several sessions share counts once.
    pub(crate) fn demote_to(&mut self, cache: &mut dyn Cache, slots: u32, except: Option<SessionId>) {
        if self.entries.is_empty() {
            return;
        }
        let excess = self.count_slots(cache).saturating_sub(slots);
        if excess == 0 {
            return;
        }
        let own = except.map(|session| (session, self.len_of(session)));
        let shortage = Shortage { slots: excess, own, leased_too: true, ..Shortage::default() };
        if self.find_victims(cache, shortage) {
            return self.evict_victims(cache);
        }
        // All others together are not enough.
        let others: Vec<SessionId> =
            self.entries.keys().copied().filter(|session| Some(*session) != except).collect();
        others.into_iter().for_each(|session| self.evict(cache, session));
    }

    fn session_of(&self, seq: SeqId) -> Option<SessionId> {
        self.entries.iter().find(|(_, retained)| retained.seq == seq).map(|(session, _)| *session)
    }

    /// Drops the retained K/V of a session that has left the order.
    fn close(&mut self, cache: &mut dyn Cache, session: SessionId) {
        if let Some(retained) = self.entries.remove(&session) {
            let closed = cache.close(retained.seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.note_change();
            self.is_recount_due = true;
            self.report(session);
        }
    }

    /// Victim search: the LRU retained sequences whose eviction frees enough slots, for
    /// `evict_victims`. False if all of them are not enough. Changes nothing else.
    pub(crate) fn find_victims(&mut self, cache: &mut dyn Cache, shortage: Shortage) -> bool {
        self.victims.clear();
        if self.entries.is_empty() {
            return false;
        }
        let own = shortage.own.and_then(|(session, len)| {
            let retained = self.entries.get(&session)?;
            Some((retained.seq, retained.gaps.position(len)))
        });
        let search = VictimSearch {
            slots: shortage.group.slots(shortage.slots),
            candidates: self.order.list(own.map(|(seq, _)| seq)),
            truncate: own,
            hit: shortage.hit,
            leased_too: shortage.leased_too,
        };
        cache.victims(&search, &mut self.victims)
    }

    /// `find_victims` for the admission of `request`. A negative answer is remembered, because the
    /// head of the queue is tested again before every step; while `idle`, every call searches.
    pub(crate) fn find_victims_for(
        &mut self,
        cache: &mut dyn Cache,
        request: RequestId,
        shortage: Shortage,
        idle: bool,
    ) -> bool {
        let (slots, changes) = (shortage.slots, self.changes);
        let is_known = |refused: Refused| {
            refused.request == request && refused.changes == changes && slots >= refused.slots
        };
        if !idle && self.refused.is_some_and(is_known) {
            return false;
        }
        let found = self.find_victims(cache, shortage);
        if !found {
            self.refused = Some(Refused { request, slots, changes });
        }
        found
    }

    pub(crate) fn clear_victims(&mut self) {
        self.victims.clear();
    }

    pub(crate) fn evict_victims(&mut self, cache: &mut dyn Cache) {
        let mut victims = std::mem::take(&mut self.victims);
        for seq in victims.drain(..) {
            if let Some(session) = self.session_of(seq) {
                self.evict(cache, session);
            }
        }
        self.victims = victims;
    }

    /// Forks retained K/V: `into` shares the first `at` tokens of `from`, in whole blocks. Nothing
    /// is copied, and no copy-on-write follows, because shared blocks are full. Returns the shared
    /// length.
    pub(crate) fn fork(
        &mut self,
        cache: &mut dyn Cache,
        from: SessionId,
        into: SessionId,
        at: u32,
        steps_in_flight: u32,
    ) -> u32 {
        self.evict(cache, into);
        let Some(source) = self.entries.get(&from) else { return 0 };
        let len = source.gaps.whole_blocks(at.min(source.tokens.len() as u32), self.block);
        if len == 0 {
            return 0;
        }
        let (salt, key, mut gaps) = (source.salt, source.key, source.gaps.clone());
        gaps.truncate(len);
        // A single-sequence cache, or one at its sequence limit, cannot share; the fork recomputes
        // its K/V.
        let Some((seq, len)) = copy_idle(cache, source.seq, &gaps, len) else { return 0 };
        gaps.truncate(len);
        let tokens = source.tokens.iter().take(len as usize).copied().collect();
        self.evict_excess(cache);
        self.insert(into, RetainedSequence { seq, tokens, gaps, salt, key }, steps_in_flight);
        len
    }

    /// Cuts tokens out of a session's retained K/V; those behind them keep their positions. If the
    /// cache cannot, or the range reaches the end, the K/V is truncated to what is before the range.
    pub(crate) fn cut(&mut self, cache: &mut dyn Cache, session: SessionId, range: Range<u32>) {
        let Some(retained) = self.entries.get_mut(&session) else { return };
        if range.is_empty() {
            return;
        }
        if range.end as usize >= retained.tokens.len() || self.max_positions == 0 {
            return self.truncate(cache, session, range.start);
        }
        let mut gaps = retained.gaps.clone();
        let positions = gaps.cut(range.start, range.end);
        let removed = cache.sequences().and_then(|capability| capability.remove(retained.seq, positions));
        if removed.is_err() {
            return self.truncate(cache, session, range.start);
        }
        retained.gaps = gaps;
        retained.tokens.drain(range.start as usize..range.end as usize);
        self.order.resize(retained.seq, retained.tokens.len() as u64);
        self.is_recount_due = true;
        self.note_change();
    }
}
