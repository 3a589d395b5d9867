//! The KV cache and the state that controls its slots: the budget, retained sessions, prefix
//! caching and compaction.
//!
//! Admission (`admission.rs`) finds slots for a waiting request; `find_space` makes slots available
//! for a running sequence. Both count against `Budget`, as does every other use of slots.
//!
//! Depends on neither the queue nor the running list; `Activity` is the only input from them.

pub(crate) mod admission;
pub(crate) mod import;
pub(crate) mod salt_keys;

use crate::request::gaps::Gaps;
use crate::request::sequence::{Cold, Sequence, SlotCopies};
use crate::scheduler::budget::Budget;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::salt_keys::SaltKeys;
use crate::scheduler::limits::{Costs, Limits};
use crate::scheduler::recent_keys::RecentKeys;
use crate::scheduler::retained_sessions::{RetainedSessions, Shortage};
use kvasir_kv::{Cache, CacheError, GroupId, KvEvent, Position, RecomputeCosts, SeqId, StepId};
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

/// The KV cache with its budget and the retained sessions.
pub(crate) struct KvManager {
    cache: Box<dyn Cache>,
    budget: Budget,
    retained: RetainedSessions,
    recent: RecentKeys,
    salt_keys: SaltKeys,
    /// Length in tokens of the frozen shared prefix that every sequence starts with; whole blocks.
    base: u32,
    /// Prefix caching is on and the cache has a prefix index.
    has_prefix: bool,
    /// Whether KV events are recorded.
    has_events: bool,
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
            retained: RetainedSessions::new(cache.shape(), if redirects { 0 } else { limits.max_model_len }),
            recent: RecentKeys::default(),
            salt_keys: SaltKeys::default(),
            base: cache.shape().base,
            has_prefix: limits.prefix_cache && cache.prefix().is_ok(),
            has_events: false,
            // With larger blocks a fork would have to copy the rows of the partly filled last
            // block.
            forks: cache.shape().block_size == 1 && cache.sequences().is_ok() && !redirects,
            publish_at,
            watermark: (u64::from(cache.shape().capacity) * u64::from(limits.watermark) / 1000) as u32,
            scattered: false,
            cache,
        }
    }

    /// Clears the prefix cache and records KV events from now on.
    pub(crate) fn record_events(&mut self) -> Result<(), CacheError> {
        if !self.has_prefix {
            self.cache.prefix()?;
            return Err(CacheError::BadConfig("KV events need prefix caching, which is disabled"));
        }
        self.cache.prefix()?.record_events()?;
        self.has_events = true;
        Ok(())
    }

    /// Moves the recorded KV events to `into`.
    pub(crate) fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        if self.has_events
            && let Ok(prefix) = self.cache.prefix()
        {
            prefix.take_events(into);
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

    /// Maximum draft tokens per claim.
    pub(crate) fn max_draft_chain(&self) -> u32 {
        let shape = self.cache.shape();
        let of_windows = shape.windows.iter().map(|window| window.longest_draft);
        let of_states = shape.states.map(|states| states.tail_rows);
        of_windows.chain(of_states).min().unwrap_or(u32::MAX)
    }

    /// Whether the model has recurrent states, to which a sequence can be rewound only at
    /// checkpoints.
    pub(crate) fn has_states(&self) -> bool {
        self.cache.shape().states.is_some()
    }

    /// Whether sliding-window layers have pools of their own, which hold the last rows only.
    pub(crate) fn has_windows(&self) -> bool {
        !self.cache.shape().windows.is_empty()
    }

    /// Whether positions at which later prompts may diverge are marked. They are if a prefix hit
    /// needs more than the K/V of the full group.
    fn uses_marks(&self) -> bool {
        self.has_states() || self.has_windows()
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

    /// Evicts LRU retained sessions that free `slots` of the full group; with `leased_too`, slots
    /// that a step in flight still leases count as freed. False, with nothing evicted, if all are
    /// not enough.
    pub(crate) fn evict_for(&mut self, slots: u32, leased_too: bool) -> bool {
        self.evict(Shortage { slots, leased_too, ..Shortage::default() })
    }

    /// Evicts LRU retained sessions that free `slots` of a layer group. False, with nothing evicted,
    /// if all are not enough.
    pub(crate) fn evict_in(&mut self, group: GroupId, slots: u32) -> bool {
        self.evict(Shortage { group, slots, ..Shortage::default() })
    }

    fn evict(&mut self, shortage: Shortage) -> bool {
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
            Err(CacheError::Full { needed, available, .. }) => {
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

    /// Marks the positions of an admitted sequence at which later prompts may diverge: the marks of
    /// its request, and the last position that a lookup of the same tokens can hit.
    pub(crate) fn mark_checkpoints(&mut self, sequence: &Sequence) {
        let Some(seq) = sequence.cache.filter(|_| self.uses_marks()) else { return };
        let intact = sequence.intact();
        let mut marks: Vec<Position> =
            sequence.cold.params.marks.iter().copied().filter(|mark| *mark <= intact).collect();
        marks.push(sequence.tokens.len() - 1);
        let marked = self.cache.mark_checkpoints(seq, &marks);
        debug_assert!(marked.is_ok(), "{marked:?}");
    }

    /// Marks the end of a finished answer, from which the next turn of its conversation continues.
    pub(crate) fn mark_answer_end(&mut self, sequence: &Sequence) {
        if let Some(seq) = sequence.cache.filter(|_| self.uses_marks()) {
            let marked = self.cache.mark_checkpoints(seq, &[sequence.computed]);
            debug_assert!(marked.is_ok(), "{marked:?}");
        }
    }

    /// Sets the costs by which the cache evicts checkpoints. Ignored while both costs are 0.
    pub(crate) fn set_recompute_costs(&mut self, costs: Costs) {
        let clamped = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        let costs = RecomputeCosts { token: clamped(costs.token_ns), depth: clamped(costs.depth_ns) };
        if self.has_states() && (costs.token > 0 || costs.depth > 0) {
            self.cache.set_recompute_costs(costs);
        }
    }

    /// Whether an unpublished computed block ends at a mark of the request, or where its prompt
    /// diverges from a cached one. Such a block is published at once: lookups find a checkpoint
    /// only through its published block, and later steps release the window rows before the mark.
    fn has_unpublished_mark(&self, sequence: &Sequence) -> bool {
        if !self.uses_marks() || sequence.dropped > 0 {
            return false;
        }
        let boundary = |mark: Position| mark / self.block() * self.block();
        let is_new = |mark: Position| (sequence.published + 1..=sequence.computed).contains(&boundary(mark));
        let Cold { params, matched, .. } = &*sequence.cold;
        // `Sequence::new` sorts the marks.
        let first = params.marks.partition_point(|mark| boundary(*mark) <= sequence.published);
        let next = params.marks.get(first).copied();
        next.into_iter().chain(Some(*matched).filter(|_| self.has_windows())).any(is_new)
    }

    /// Publishes the computed whole blocks of a sequence to the prefix cache. Under
    /// `PublishAt::Milestones` only if `milestone`, or if an unpublished block ends at a mark.
    pub(crate) fn publish(&mut self, sequence: &mut Sequence, milestone: bool) {
        let Some(seq) = sequence.cache else { return };
        if !self.has_prefix || sequence.computed < sequence.published + self.block() {
            return;
        }
        let is_due = match self.publish_at {
            PublishAt::EveryBlock => true,
            PublishAt::Milestones => milestone || self.has_unpublished_mark(sequence),
        };
        if !is_due {
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
