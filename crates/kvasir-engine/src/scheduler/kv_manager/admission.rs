//! Admission to the KV cache: `grant` tests whether a waiting request fits and selects the victims;
//! `admit` evicts them and attaches the request's cache sequence.
//!
//! A request may start from cached K/V, its *hit*: its session's retained K/V, the prompt of the
//! sibling that computed it, or a prefix-cache match.

use crate::request::prefix_match::PrefixMatch;
use crate::request::sequence::Sequence;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::KvManager;
use crate::scheduler::retained_sessions::Shortage;
use kvasir_kv::{CacheEnd, GroupId, Hit, SeqId};

/// Admission terms of a waiting sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionTerms {
    /// Length, in tokens, up to which KV slots must be available now and are reserved.
    pub reserve_to: u32,
    /// Most tokens of a prefix-cache hit to reuse.
    pub hit_limit: u32,
}

/// The result of a successful admission test, valid until the KV cache changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) hit: Hit,
    /// Tokens of the hit that come from the session's retained K/V. If 0, the hit is a prefix-cache
    /// match or a fork of the sibling that computed the prompt.
    retained: u32,
    reserve_to: u32,
    /// Slots of the whole sequence up to `reserve_to`, in whole blocks.
    slots: u32,
}

/// The cache sequence of a sibling's leader, and the number of prompt tokens to fork from it.
pub(crate) type Fork = Option<(SeqId, u32)>;

/// A prefix hit that covers the whole lookup.
fn full_hit(tokens: u32) -> Hit {
    Hit { tokens, matched: tokens, ..Hit::default() }
}

/// Other use of the KV cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activity {
    pub(crate) running: bool,
    pub(crate) steps_in_flight: u32,
}

impl Activity {
    fn is_idle(self) -> bool {
        !self.running && self.steps_in_flight == 0
    }
}

impl KvManager {
    /// The hit of a waiting sequence outside its own session: the sibling to fork, or the prefix
    /// cache. Cost: may hash or compare the whole prompt.
    fn find_prefix(&mut self, sequence: &mut Sequence, fork: Fork) -> Hit {
        if let Some((leader, tokens)) = fork {
            // With recurrent states, the fork ends at the last stored state. With window groups,
            // there is no fork if the window rows before its end were released.
            let floor = self.cache.rewind().and_then(|capability| capability.rewind_floor(leader, tokens));
            return full_hit(floor.unwrap_or(0).max(self.base));
        }
        // Prompt log-probabilities need logits, which cached tokens do not produce.
        match self.cache.prefix() {
            Ok(prefix) if self.has_prefix && !sequence.wants_scores() => {
                prefix.lookup(sequence.tokens.gather(), sequence.cold.params.salt)
            }
            _ => full_hit(self.base),
        }
    }

    /// The prefix-cache hit of a waiting sequence, or its session's retained K/V if that is at
    /// least as long.
    pub(crate) fn lookup(&mut self, sequence: &mut Sequence, fork: Fork) -> Hit {
        self.choose_hit(sequence, fork, u32::MAX).0
    }

    /// Chooses the hit of a waiting sequence, at most `limit` tokens: its session's retained K/V if
    /// that is reusable, else the prefix cache's. Returns the hit and how much of it is retained.
    fn choose_hit(&mut self, sequence: &mut Sequence, fork: Fork, limit: u32) -> (Hit, u32) {
        let found = self.find_prefix(sequence, fork);
        match self.retained.reusable(&mut *self.cache, sequence, found.tokens, limit) {
            (0, _) => {
                let (tokens, evictable) =
                    (found.tokens.min(limit), found.evictable.map(|slots| slots.min(limit)));
                (Hit { tokens, evictable, ..found }, 0)
            }
            (tokens, matched) => (self.retained_hit(sequence, tokens, matched, found), tokens),
        }
    }

    /// A hit of `tokens` of the `retained` tokens of the session that match the request. `found` is
    /// the prefix-cache hit, which is not longer; its reason applies if both have the same length.
    fn retained_hit(&self, sequence: &Sequence, tokens: u32, retained: u32, found: Hit) -> Hit {
        let max_hit = sequence.len().saturating_sub(1) / self.block() * self.block();
        let cache_end = if tokens >= max_hit {
            None
        } else if retained > tokens {
            // The retained sequence has no state at a greater length, or the policy limits the hit.
            self.cache.shape().groups.states().map(|_| CacheEnd::NoCheckpoint)
        } else if found.tokens == tokens && self.has_prefix {
            found.cache_end
        } else {
            Some(CacheEnd::NeverComputed)
        };
        let other_salt = if found.cache_end == cache_end { found.other_salt } else { 0 };
        Hit { tokens, matched: found.matched.max(retained), cache_end, other_salt, ..Hit::default() }
    }

    /// The match that an attached hit reports, with the reason that its client may see.
    pub(crate) fn prefix_match(&self, sequence: &Sequence, hit: Hit) -> PrefixMatch {
        let Hit { matched, cache_end, other_salt, .. } = hit;
        let key = sequence.cold.params.key;
        let public_cache_end =
            cache_end.map(|cache_end| self.salt_keys.public_reason(cache_end, other_salt, key));
        PrefixMatch { matched, cache_end, public_cache_end }
    }

    /// Admission test: whether the KV slots suffice, and which retained sequences must be evicted.
    /// Changes only the victim list, which `admit` evicts, and the LRU order of looked-up blocks.
    pub(crate) fn grant(
        &mut self,
        sequence: &mut Sequence,
        fork: Fork,
        terms: AdmissionTerms,
        activity: Activity,
    ) -> Result<Grant, DeferReason> {
        let granted = self.grant_with_hit(sequence, fork, terms, activity);
        // If only part of a hit is used, a cache may count too many of its slots as in use. With
        // nothing running, deferring would not help, so the request is tested without the hit.
        let cannot_wait = activity.is_idle() && self.retained.len() > 0;
        if granted.is_err() && cannot_wait && terms.hit_limit > self.base {
            let without = AdmissionTerms { hit_limit: self.base, ..terms };
            return self.grant_with_hit(sequence, fork, without, activity);
        }
        granted
    }

    /// The slot arithmetic of `grant`: `needed = reserve_to - hit + evictable`, in whole blocks, against
    /// unreserved slots above the watermark, then against LRU victims.
    fn grant_with_hit(
        &mut self,
        sequence: &mut Sequence,
        fork: Fork,
        terms: AdmissionTerms,
        activity: Activity,
    ) -> Result<Grant, DeferReason> {
        let (hit, retained) = self.choose_hit(sequence, fork, terms.hit_limit);
        let skipped = self.retained.skipped(sequence, retained);
        // With gaps in its positions the sequence will end earlier.
        let reserve_to = match skipped {
            0 => terms.reserve_to,
            _ => terms.reserve_to.min(self.retained.max_positions().saturating_sub(skipped)),
        };
        let slots = self.budget.block().whole(reserve_to.max(sequence.len()) + skipped);
        let grant = Grant { hit, retained, reserve_to, slots };
        let held = (hit.tokens + skipped) / self.block() * self.block();
        let needed = slots.saturating_sub(held) + hit.evictable[GroupId::FULL.index()];
        let watermark = if activity.running { self.watermark } else { 0 };
        let usage = self.cache.usage();
        let unreserved = self.budget.unreserved(usage);
        let available = unreserved.saturating_sub(watermark);
        if needed <= available {
            self.retained.clear_victims();
            return Ok(grant);
        }
        if usage.leased > 0 && needed <= unreserved + usage.leased {
            return Err(DeferReason::Lease { slots: usage.leased });
        }
        let own = sequence.cold.params.session.map(|session| (session, retained));
        let slots = self.budget.missing(usage, needed.saturating_add(watermark));
        let shortage = Shortage { slots, hit, own, ..Shortage::default() };
        let idle = activity.is_idle();
        if self.retained.find_victims_for(&mut *self.cache, sequence.id, shortage, idle) {
            return Ok(grant);
        }
        Err(if needed <= usage.available() {
            DeferReason::Reserved { needed, available }
        } else {
            DeferReason::NoSlots { needed, available: usage.available() }
        })
    }

    /// Executes a grant: evicts its victims, gives the request a cache sequence with its hit, and
    /// reserves slots up to the granted length. Returns the hit that was attached.
    ///
    /// If the cache has no sequence left and no retained one to close, fails before it evicts
    /// anything.
    pub(crate) fn admit(
        &mut self,
        sequence: &mut Sequence,
        fork: Fork,
        grant: Grant,
    ) -> Result<Hit, DeferReason> {
        let opened = if grant.retained == 0 { self.cache.open().ok() } else { None };
        if grant.retained == 0 && opened.is_none() && self.retained.len() == 0 {
            return Err(DeferReason::CacheSequences);
        }
        self.salt_keys.record(sequence.cold.params.salt, sequence.cold.params.key);
        self.retained.evict_victims(&mut *self.cache);
        self.demote_retained(sequence, grant);
        let session = sequence.cold.params.session;
        let taken = session.and_then(|session| self.retained.take(&mut *self.cache, session, grant.retained));
        let (seq, hit) = match (taken, opened) {
            (Some(taken), _) => {
                let hit = Hit { tokens: taken.tokens.len() as u32, ..grant.hit };
                sequence.set_gaps(taken.gaps);
                (taken.seq, hit)
            }
            (None, Some(seq)) => (seq, self.attach(sequence, seq, fork, grant.hit)),
            (None, None) => {
                let seq = self.open_sequence()?;
                (seq, self.attach(sequence, seq, fork, grant.hit))
            }
        };
        sequence.cache = Some(seq);
        sequence.computed = hit.tokens;
        sequence.claimed = hit.tokens;
        sequence.published = hit.tokens / self.block() * self.block();
        sequence.cold.hit = hit.tokens;
        sequence.cold.matched = hit.matched;
        sequence.cold.reserve_to = grant.reserve_to;
        self.mark_checkpoints(sequence);
        self.cache.reserve_memory(seq, sequence.longest());
        let held = self.budget.block().whole(sequence.next_position());
        self.budget.reserve(sequence, grant.slots.saturating_sub(held));
        Ok(hit)
    }

    /// Limits retained K/V to half of the pool before an admission that needs more than the free
    /// slots, if recent admissions are of several keys. The excess stays in the prefix cache and is
    /// evicted in LRU order like any other prefix.
    fn demote_retained(&mut self, sequence: &Sequence, grant: Grant) {
        self.recent.note(sequence.cold.params.key);
        if !self.has_prefix || !self.recent.are_several() {
            return;
        }
        let needed = self.budget.reserved() + grant.slots.saturating_sub(grant.hit.tokens);
        if needed > self.cache.usage().free {
            let most = self.cache.shape().capacity / 2;
            self.retained.demote_to(&mut *self.cache, most, sequence.cold.params.session);
        }
    }

    /// Opens a cache sequence, evicting LRU retained sessions while the cache is at its sequence
    /// limit.
    fn open_sequence(&mut self) -> Result<SeqId, DeferReason> {
        loop {
            match self.cache.open() {
                Ok(seq) => return Ok(seq),
                Err(_) if self.retained.evict_oldest(&mut *self.cache) => {}
                Err(_) => return Err(DeferReason::CacheSequences),
            }
        }
    }

    /// Attaches a cache hit to a fresh sequence: a fork of the leader, or a prefix-cache match of
    /// at most `hit.tokens`. Called even for an empty hit, so that the cache knows the prefix that
    /// the sequence will publish.
    fn attach(&mut self, sequence: &mut Sequence, seq: SeqId, fork: Fork, hit: Hit) -> Hit {
        let limit = hit.tokens;
        let attached = match fork.filter(|_| limit > 0) {
            Some((leader, tokens)) => {
                let copied = self
                    .cache
                    .sequences()
                    .and_then(|capability| capability.copy(leader, seq, 0..tokens.min(limit)));
                copied.and_then(|()| self.cache.len(seq))
            }
            None => {
                let salt = sequence.cold.params.salt;
                let tokens = sequence.tokens.gather();
                let attached = self
                    .cache
                    .prefix()
                    .and_then(|prefix| prefix.attach(seq, tokens, salt, limit, hit.lookup));
                attached.map(|attached| attached.tokens)
            }
        };
        Hit { tokens: attached.unwrap_or(self.base), ..hit }
    }
}
