//! The KV cache and all that decides over its slots: the budget, retained sessions, prefix caching
//! and compaction.
//!
//! Admission: `grant` tests whether a request fits and changes nothing; `admit` carries the grant
//! out and evicts the victims that the test found. Growth: `find_space` makes slots available for a
//! running sequence. Both count against `Budget`, through which every other use of slots goes, too.
//!
//! Knows neither queue nor running list; `Activity` is all that it is told of them.

use crate::request::gaps::Gaps;
use crate::request::sequence::{Sequence, SlotCopies};
use crate::scheduler::budget::Budget;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::limits::Limits;
use crate::scheduler::recent_keys::RecentKeys;
use crate::scheduler::retained_sessions::{RetainedSessions, Shortage};
use kvasir_kv::{Cache, CacheError, Hit, SeqId, StepId};
use serde::{Deserialize, Serialize};

/// When computed blocks are published to the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PublishAt {
    /// As soon as a block is full.
    EveryBlock,
    /// At the end of prefill, at preemption and at the end of the request.
    Milestones,
}

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

/// What else keeps the KV cache busy.
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

/// The KV cache with its budget and the retained sessions.
pub(crate) struct KvManager {
    cache: Box<dyn Cache>,
    budget: Budget,
    retained: RetainedSessions,
    recent: RecentKeys,
    /// Length in tokens of the frozen shared prefix that every sequence starts with; whole blocks.
    base: u32,
    /// Prefix caching is on and the cache has a prefix index.
    has_prefix: bool,
    /// Siblings can fork their leader's sequence (blocks of one slot). Used only if the cache has
    /// no prefix index.
    forks: bool,
    publish_at: PublishAt,
    /// Slots that admission keeps free while a request runs.
    watermark: u32,
    /// A sequence released slots since the last compaction.
    scattered: bool,
}

impl KvManager {
    /// Takes over an empty cache. With `redirects`, the policy recomputes cached tokens, which neither
    /// a fork nor a gap in the positions survives.
    pub(crate) fn new(
        mut cache: Box<dyn Cache>,
        limits: &Limits,
        publish_at: PublishAt,
        redirects: bool,
    ) -> Self {
        let block = cache.shape().block_size.max(1);
        Self {
            budget: Budget::new(block),
            retained: RetainedSessions::new(block, if redirects { 0 } else { limits.max_model_len }),
            recent: RecentKeys::default(),
            base: cache.shape().base,
            has_prefix: limits.prefix_cache && cache.prefix().is_ok(),
            // With larger blocks a fork would have to copy the rows of the partly filled last
            // block.
            forks: cache.shape().block_size == 1 && cache.sequences().is_ok() && !redirects,
            publish_at,
            watermark: (u64::from(cache.shape().capacity) * u64::from(limits.watermark) / 1000) as u32,
            scattered: false,
            cache,
        }
    }

    pub(crate) fn cache(&self) -> &dyn Cache {
        &*self.cache
    }

    /// The cache, for operations that release nothing.
    #[inline]
    pub(crate) fn cache_mut(&mut self) -> &mut dyn Cache {
        &mut *self.cache
    }

    #[inline]
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    #[inline]
    pub(crate) fn budget_mut(&mut self) -> &mut Budget {
        &mut self.budget
    }

    pub(crate) fn retained(&self) -> &RetainedSessions {
        &self.retained
    }

    /// The retained sessions, with the cache that their methods need.
    pub(crate) fn retained_mut(&mut self) -> (&mut RetainedSessions, &mut dyn Cache) {
        (&mut self.retained, &mut *self.cache)
    }

    /// Counts the slots that only retained sequences own, if they may have changed.
    pub(crate) fn recount_retained(&mut self) {
        self.retained.recount_slots(&mut *self.cache);
    }

    #[inline]
    pub(crate) fn block(&self) -> u32 {
        self.budget.block().rows()
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// Slots, in whole blocks, of a sequence of `tokens`, excluding the frozen shared prefix.
    pub(crate) fn own_slots(&self, tokens: u32) -> u32 {
        self.budget.block().whole(tokens).saturating_sub(self.base)
    }

    /// Whether siblings of parallel sampling share their prompt, by prefix cache or by fork.
    pub(crate) fn shares_prompts(&self) -> bool {
        self.has_prefix || self.forks
    }

    /// Whether siblings fork their leader's sequence, because the cache has no prefix index.
    pub(crate) fn forks_siblings(&self) -> bool {
        !self.has_prefix && self.forks
    }

    /// The hit of a waiting sequence outside its own session: the sibling to fork, or the prefix
    /// cache. Cost: may hash or compare the whole prompt.
    fn find_prefix(&mut self, sequence: &mut Sequence, fork: Fork) -> Hit {
        if let Some((_, tokens)) = fork {
            return Hit { tokens: tokens.max(self.base), ..Hit::default() };
        }
        // A prompt that wants log-probabilities skips the prefix cache: cached tokens produce no
        // logits.
        match self.cache.prefix() {
            Ok(prefix) if self.has_prefix && !sequence.wants_scores() => {
                prefix.lookup(sequence.tokens.gather(), sequence.cold.params.salt)
            }
            _ => Hit { tokens: self.base, ..Hit::default() },
        }
    }

    /// The prefix-cache hit of a waiting sequence, or its session's retained K/V if that is at
    /// least as long.
    pub(crate) fn lookup(&mut self, sequence: &mut Sequence, fork: Fork) -> Hit {
        self.choose_hit(sequence, fork, u32::MAX).0
    }

    /// Decides the hit of a waiting sequence, at most `limit` tokens: its session's retained K/V if
    /// that is reusable, else the prefix cache's. Returns the hit and how much of it is retained.
    fn choose_hit(&mut self, sequence: &mut Sequence, fork: Fork, limit: u32) -> (Hit, u32) {
        let found = self.find_prefix(sequence, fork);
        match self.retained.reusable(&mut *self.cache, sequence, found.tokens, limit) {
            0 => {
                let (tokens, evictable) = (found.tokens.min(limit), found.evictable.min(limit));
                (Hit { tokens, evictable, ..found }, 0)
            }
            tokens => (Hit { tokens, ..Hit::default() }, tokens),
        }
    }

    /// Admission test: whether the KV slots suffice, and which retained sequences must be evicted.
    /// Changes nothing but that victim list, which `admit` evicts, and the LRU order of looked-up blocks.
    pub(crate) fn grant(
        &mut self,
        sequence: &mut Sequence,
        fork: Fork,
        terms: AdmissionTerms,
        activity: Activity,
    ) -> Result<Grant, DeferReason> {
        let granted = self.grant_with_hit(sequence, fork, terms, activity);
        // If only part of a hit is taken over, a cache may count too much of it as in use. With
        // nothing running, waiting would not help, so the request is tested without the hit.
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
        let needed = slots.saturating_sub(held) + hit.evictable;
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
        let shortage = Shortage { slots, hit, own, leased_too: false };
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

    /// Carries out a grant: evicts its victims, gives the request a cache sequence with its hit,
    /// and reserves slots up to the granted length. Returns the hit that was attached.
    ///
    /// On error nothing has changed: that the cache has a sequence left, or a retained one to close
    /// for it, is checked before anything is evicted.
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
        self.retained.evict_victims(&mut *self.cache);
        self.demote_retained(sequence, grant);
        let session = sequence.cold.params.session;
        let taken = session.and_then(|session| self.retained.take(&mut *self.cache, session, grant.retained));
        let (seq, hit) = match (taken, opened) {
            (Some(taken), _) => {
                let hit = Hit { tokens: taken.tokens.len() as u32, ..Hit::default() };
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
        sequence.cold.reserve_to = grant.reserve_to;
        self.cache.reserve_memory(seq, sequence.longest());
        let held = self.budget.block().whole(sequence.next_position());
        self.budget.reserve(sequence, grant.slots.saturating_sub(held));
        Ok(hit)
    }

    /// Limits retained K/V to half of the pool before an admission that needs more than the free
    /// slots, if recent admissions are of several keys. The excess stays in the prefix cache, where
    /// LRU eviction treats it like any other prefix.
    fn demote_retained(&mut self, sequence: &Sequence, grant: Grant) {
        self.recent.note(sequence.cold.params.key);
        if !self.has_prefix || !self.recent.are_several() {
            return;
        }
        let needed = self.budget.reserved() + grant.slots.saturating_sub(grant.hit.tokens);
        if needed > self.cache.usage().free {
            let most = u64::from(self.cache.shape().capacity / 2);
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
    /// at most `hit.tokens`. Called even for an empty hit, so that the cache learns the prefix the
    /// sequence will publish.
    fn attach(&mut self, sequence: &mut Sequence, seq: SeqId, fork: Fork, hit: Hit) -> Hit {
        let limit = hit.tokens;
        let attached = match fork.filter(|_| limit > 0) {
            Some((leader, tokens)) => {
                let copied = self
                    .cache
                    .sequences()
                    .and_then(|capability| capability.copy(leader, seq, 0..tokens.min(limit)));
                copied.and_then(|()| Ok(Hit { tokens: self.cache.len(seq)?, ..Hit::default() }))
            }
            None => {
                let salt = sequence.cold.params.salt;
                let tokens = sequence.tokens.gather();
                self.cache.prefix().and_then(|prefix| prefix.attach(seq, tokens, salt, limit, hit.lookup))
            }
        };
        attached.unwrap_or(Hit { tokens: self.base, ..Hit::default() })
    }

    /// Ensures that a running sequence may claim `slots`, evicting retained session K/V if that
    /// suffices.
    pub(crate) fn find_space(&mut self, sequence: &Sequence, slots: u32) -> Result<(), DeferReason> {
        let beyond = slots.saturating_sub(sequence.reserved);
        let missing = self.budget.missing(self.cache.usage(), beyond);
        if missing == 0 || self.evict_for(missing, false) {
            return Ok(());
        }
        // Waiting for the slots that a step in flight releases is cheaper than preempting.
        let leased = self.cache.usage().leased;
        match missing.saturating_sub(leased) {
            0 => Err(DeferReason::Lease { slots: leased }),
            beyond if self.evict_for(beyond, true) => {
                Err(DeferReason::Lease { slots: self.cache.usage().leased })
            }
            _ => {
                let available = self.budget.unreserved(self.cache.usage()) + sequence.reserved;
                Err(DeferReason::NoSlots { needed: slots, available })
            }
        }
    }

    /// Evicts LRU retained sessions that free `slots`; with `leased_too`, slots that a step in
    /// flight still leases count as freed. False, with nothing evicted, if all are not enough.
    pub(crate) fn evict_for(&mut self, slots: u32, leased_too: bool) -> bool {
        let shortage = Shortage { slots, leased_too, ..Shortage::default() };
        let found = self.retained.find_victims(&mut *self.cache, shortage);
        if found {
            self.retained.evict_victims(&mut *self.cache);
        }
        found
    }

    pub(crate) fn evict_all(&mut self) {
        while self.retained.evict_oldest(&mut *self.cache) {}
    }

    /// Allocates slots for `tokens` more tokens of a running sequence now, out of its reservation.
    pub(crate) fn preallocate(&mut self, sequence: &mut Sequence, tokens: u32) -> Result<(), DeferReason> {
        let Some(seq) = sequence.cache else { return Ok(()) };
        match self.cache.preallocate_slots(seq, sequence.claimed + tokens) {
            Ok(upto) => sequence.ahead = upto,
            Err(CacheError::Full { needed, available }) => {
                return Err(DeferReason::NoSlots { needed, available });
            }
            Err(error) => {
                debug_assert!(false, "an open sequence cannot be preallocated: {error}");
                return Ok(());
            }
        }
        let granted = self.budget.block().whole(sequence.cold.reserve_to);
        let left = granted.saturating_sub(sequence.ahead).min(sequence.reserved);
        self.budget.reserve(sequence, left);
        Ok(())
    }

    /// Whether a sequence has a full block to publish, and full blocks are published at once.
    #[inline]
    pub(crate) fn publishes_block(&self, sequence: &Sequence) -> bool {
        self.publish_at == PublishAt::EveryBlock && sequence.computed >= sequence.published + self.block()
    }

    /// Publishes the computed whole blocks of a sequence to the prefix cache. Under
    /// `PublishAt::Milestones` only if `milestone`.
    pub(crate) fn publish(&mut self, sequence: &mut Sequence, milestone: bool) {
        let wanted = match self.publish_at {
            PublishAt::EveryBlock => true,
            PublishAt::Milestones => milestone,
        };
        let Some(seq) = sequence.cache else { return };
        if !self.has_prefix || !wanted || sequence.computed < sequence.published + self.block() {
            return;
        }
        let whole = sequence.computed / self.block() * self.block();
        let computed = sequence.computed.min(sequence.tokens.len());
        if let Ok(prefix) = self.cache.prefix()
            && prefix.publish(seq, sequence.tokens.gather(), computed).is_ok()
        {
            sequence.published = whole;
        }
    }

    /// Rewinds a running sequence to `len` tokens of K/V and renews its reservation.
    #[cfg(feature = "replay")]
    pub(crate) fn rewind(&mut self, sequence: &mut Sequence, len: u32) {
        sequence.claimed = len;
        sequence.computed = sequence.computed.min(len);
        sequence.published = sequence.published.min(len / self.block() * self.block());
        if let Some(seq) = sequence.cache {
            let rewound =
                self.cache.rewind().and_then(|capability| capability.rewind_to(seq, len + sequence.skipped));
            debug_assert!(rewound.is_ok(), "{rewound:?}");
        }
        self.budget.renew(sequence);
    }

    /// Releases all K/V of a sequence and its reservation. Slots named by steps in flight stay
    /// leased until those retire.
    pub(crate) fn release(&mut self, sequence: &mut Sequence) {
        self.budget.reserve(sequence, 0);
        sequence.claimed = 0;
        sequence.computed = 0;
        sequence.ahead = 0;
        sequence.published = 0;
        sequence.set_gaps(Gaps::default());
        sequence.cold.hit = 0;
        sequence.copies = SlotCopies::None;
        sequence.drafts = 0;
        sequence.cold.drafts.clear();
        if let Some(seq) = sequence.cache.take() {
            self.scattered = true;
            // The id is open and owned by this sequence, so closing cannot fail.
            let closed = self.cache.close(seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.retained.note_change();
        }
    }

    /// Retains the K/V of a finishing request: its pinned prefixes, and all of it for its session, if
    /// it has one.
    pub(crate) fn retain(&mut self, sequence: &mut Sequence, steps_in_flight: u32) {
        self.retained.pin(&mut *self.cache, sequence, steps_in_flight);
        self.retained.retain(&mut *self.cache, sequence, steps_in_flight);
    }

    /// Ends the cache's lease of a step that ran.
    pub(crate) fn retire(&mut self, step: StepId) {
        if self.cache.usage().leased > 0 {
            self.retained.note_change();
        }
        self.retained.note_step();
        let retired = self.cache.retire(step);
        debug_assert!(retired.is_ok(), "{retired:?}");
    }

    /// Undoes the claim of the newest step, which was not run.
    pub(crate) fn cancel(&mut self, step: StepId) {
        let canceled = self.cache.cancel(step);
        debug_assert!(canceled.is_ok(), "{canceled:?}");
        self.retained.note_change();
    }

    pub(crate) fn withdraw_tree(&mut self, seq: SeqId) {
        if let Ok(tree) = self.cache.tree() {
            let withdrawn = tree.propose(seq, &[]);
            debug_assert!(withdrawn.is_ok(), "{withdrawn:?}");
        }
    }

    pub(crate) fn is_scattered(&self) -> bool {
        self.scattered
    }

    /// Compacts the cache if the only running sequence, if there is one, owns every held slot and
    /// slot copies are possible. True if the next step must carry copies.
    pub(crate) fn compact(&mut self, alone: Option<&Sequence>) -> bool {
        self.scattered = false;
        // Retained sequences would silently lose rows if the step that carries the copies failed.
        alone.is_some_and(|alone| self.cache.usage().held == alone.claimed)
            && self.cache.compact().is_ok_and(|copies| copies > 0)
    }
}
