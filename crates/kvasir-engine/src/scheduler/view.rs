//! The scheduler view: everything a policy can read (queue, running set, pool usage, budgets,
//! costs) and do (admit, feed a prefill chunk, decode, defer, preempt, finish for want of
//! capacity).
//!
//! Slots that others have reserved are subtracted from what a sequence may claim, so a policy keeps
//! no slot accounting of its own.
//!
//! Every refused verb returns a `DeferReason`. A refused admission has changed nothing. A row that
//! is refused is not scheduled and reserves nothing, but retained sessions may have been evicted
//! for it, if that frees its slots once a step in flight retires.

use crate::request::ids::RequestId;
use crate::request::sequence::{Sequence, Status};
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::admission::AdmissionTerms;
use crate::scheduler::limits::{Costs, Limits};
use crate::scheduler::record::RectangleRecord;
use crate::scheduler::schedule::{Feed, ScheduledRow};
use crate::scheduler::state::SchedulerState;
use kvasir_exec::RowKind;
use kvasir_kv::{Hit, SeqId};

/// The scheduler view passed to a policy: its only way to read state and to act.
///
/// Sequences are named by their entry in the core's table, which names the same sequence while that
/// lives.
pub struct SchedulerView<'a> {
    state: &'a mut SchedulerState,
    now: Nanos,
    costs: Costs,
}

impl<'a> SchedulerView<'a> {
    pub(crate) fn new(state: &'a mut SchedulerState, now: Nanos, costs: Costs) -> Self {
        Self { state, now, costs }
    }

    /// Time of this `schedule` call.
    pub fn now(&self) -> Nanos {
        self.now
    }
    /// Measured step costs; zeros until learned.
    pub fn costs(&self) -> Costs {
        self.costs
    }
    /// The scheduler limits.
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }
    /// KV slots per block.
    pub fn block_size(&self) -> u32 {
        self.state.kv.block()
    }
    /// KV pool capacity in slots.
    pub fn capacity(&self) -> u32 {
        self.state.kv.cache().shape().capacity
    }
    /// Slots, in whole blocks, that a sequence of `tokens` occupies, excluding a frozen shared
    /// prefix.
    pub fn own_slots(&self, tokens: u32) -> u32 {
        self.state.kv.own_slots(tokens)
    }
    /// Steps in flight.
    pub fn steps_in_flight(&self) -> u32 {
        self.state.steps_in_flight
    }
    /// The sequence at `entry`, which must be live.
    pub fn sequence(&self, entry: u32) -> &Sequence {
        &self.state.requests[entry]
    }
    /// The entry of a running sequence.
    pub fn find_running(&self, id: RequestId) -> Option<u32> {
        let entry = self.state.requests.find(id)?;
        (self.sequence(entry).status == Status::Running).then_some(entry)
    }
    /// The part of the step record that the `rectangular` policy fills in.
    pub fn rectangle(&mut self) -> &mut RectangleRecord {
        &mut self.state.record.rectangle
    }
    /// Number of running sequences.
    pub fn running(&self) -> usize {
        self.state.requests.running().len()
    }
    /// Number of running sequences in prefill.
    pub fn prefilling(&self) -> usize {
        self.state.requests.prefilling() as usize
    }
    /// The `i`-th running sequence in order of admission.
    pub fn running_at(&self, i: usize) -> Option<u32> {
        self.state.requests.running().get(i).copied()
    }
    /// Number of waiting sequences.
    pub fn waiting(&self) -> usize {
        self.state.requests.waiting().len()
    }
    /// The head of the waiting queue.
    pub fn next_waiting(&mut self) -> Option<u32> {
        self.state.requests.waiting_mut().front()
    }
    /// Waiting sequences in queue order.
    pub fn waiting_in_order(&self) -> impl Iterator<Item = u32> {
        self.state.requests.waiting().iter()
    }
    /// Token budget left in the step (`max_num_batched_tokens`).
    pub fn token_budget(&self) -> u32 {
        self.state.limits.max_num_batched_tokens.saturating_sub(self.state.schedule.tokens())
    }
    /// Rows scheduled in the step so far.
    pub fn scheduled_rows(&self) -> usize {
        self.state.schedule.rows().len()
    }
    /// Whether a sequence is already scheduled or deferred in this call.
    pub fn is_settled(&self, entry: u32) -> bool {
        self.state.schedule.is_settled(self.sequence(entry))
    }

    /// Defers a sequence in this step, with the reason for the record.
    pub fn defer(&mut self, entry: u32, reason: DeferReason) {
        self.state.defer(entry, reason);
    }
    /// Sets the reason for all running sequences that are neither scheduled nor deferred
    /// individually.
    pub fn defer_rest_running(&mut self, reason: DeferReason) {
        self.state.record.rest_running = Some(reason);
    }
    /// Sets the reason for all waiting sequences that are not deferred individually.
    pub fn defer_rest_waiting(&mut self, reason: DeferReason) {
        self.state.record.rest_waiting = Some(reason);
    }

    /// The prefix-cache hit of a waiting sequence, or its session's retained K/V if that is at
    /// least as long. Cost: may hash or compare the whole prompt.
    pub fn lookup(&mut self, entry: u32) -> Hit {
        let fork = self.state.fork_of(entry);
        self.state.kv.lookup(&mut self.state.requests[entry], fork)
    }

    /// Admission test without admission: the cache hit that `admit` would use, or why it would
    /// fail. Admits and evicts nothing; the lookup may update the LRU order of the prefix cache.
    /// `entry` must be waiting. Cost: that of `lookup`.
    pub fn admissible(&mut self, entry: u32, admit: AdmissionTerms) -> Result<Hit, DeferReason> {
        self.state.admissible(entry, admit).map(|grant| grant.hit)
    }

    /// Admits a waiting sequence: attaches its cache hit, binds an executor row and reserves slots
    /// up to `admit.reserve_to`. `entry` must be waiting. Retained K/V of sessions is evicted only
    /// if that makes the sequence fit.
    ///
    /// Returns the hit that was attached. On error the sequence stays in the queue, and nothing has
    /// changed.
    pub fn admit(&mut self, entry: u32, admit: AdmissionTerms) -> Result<Hit, DeferReason> {
        self.state.try_admit(entry, admit, self.now)
    }

    /// Most tokens of one prefill chunk. A chunk whose prompt log-probabilities are wanted needs a
    /// row of logits per token.
    pub fn chunk_limit(&self, entry: u32) -> u32 {
        const SCORED: u32 = 128;
        if self.sequence(entry).wants_scores() { SCORED } else { u32::MAX }
    }

    /// The reason why a running sequence cannot be fed now regardless of KV slots, if there is one.
    pub fn must_wait(&self, entry: u32) -> Option<DeferReason> {
        let sequence = self.sequence(entry);
        match sequence.in_flight > 0 {
            false => None,
            true if sequence.verifying || self.state.speculates => Some(DeferReason::Verifying),
            true if sequence.outputs_left() == 0 => Some(DeferReason::LastTokenInFlight),
            true => sequence.serial.then_some(DeferReason::TokenInFlight),
        }
    }

    /// Schedules a row of `entry` without drafts: the next `feed.tokens` tokens that it has to be
    /// fed, a prefill chunk or one decode token.
    /// `entry` must be running and not settled. On error the row is not scheduled.
    pub fn feed(&mut self, entry: u32, feed: Feed) -> Result<(), DeferReason> {
        self.schedule_row(entry, feed, 0)
    }

    /// Schedules a decode of `entry`: its newest token and, with speculative decoding, as many
    /// drafts as fit. `entry` must be running and not settled. On error the row is not scheduled.
    #[inline]
    pub fn decode(&mut self, entry: u32) -> Result<(), DeferReason> {
        let feed = Feed { tokens: 1, ..Feed::default() };
        if self.state.requests.has_drafts(entry) {
            let drafts = self.drafts_that_fit(entry);
            if drafts > 0 && self.schedule_row(entry, feed, drafts).is_ok() {
                return Ok(());
            }
        }
        self.schedule_row(entry, feed, 0)
    }

    /// Drafts require that the newest token is committed on the host and is the only one to feed.
    /// Unless all of them are to be verified, their depth is bounded by the outputs left.
    fn drafts_that_fit(&self, entry: u32) -> u32 {
        let (sequence, fixed) = (self.sequence(entry), self.state.verifies_all_drafts);
        let left = if fixed { u32::MAX } else { sequence.outputs_left() };
        match sequence.in_flight == 0 && sequence.to_feed() == 1 {
            true if sequence.cold.drafts.parents.is_empty() => {
                sequence.drafts.min(left.saturating_sub(1)).min(self.token_budget().saturating_sub(1))
            }
            true if left > 1 => sequence.drafts,
            _ => 0,
        }
    }

    /// Divides the step's prompt tokens among client keys (`prefill_tokens_left`), under
    /// `Order::Fair` and if several keys have prompts to feed. `budget` maps the largest number of
    /// tokens already fed to one of these prompts to the step's prompt tokens. Returns that budget,
    /// or `None` if it is not divided.
    pub fn share_prefill(&mut self, budget: impl FnOnce(u32) -> u32) -> Option<u32> {
        self.state.share_prefill(budget)
    }
    /// Prompt tokens that sequences of this sequence's key may still be fed in this step.
    pub fn prefill_tokens_left(&self, entry: u32) -> u32 {
        self.state.prefill_shares.left(self.sequence(entry).params().key)
    }
    /// Whether the step feeds no other prompt of this sequence's key yet. Tracked only in steps
    /// whose prompt tokens are divided among keys.
    pub fn is_first_prompt_of_key(&self, entry: u32) -> bool {
        self.state.prefill_shares.is_unused(self.sequence(entry).params().key)
    }
    /// Whether the step must decode before more prompts run, so that no client key's prompts delay
    /// another's decodes by more than one step.
    pub fn decodes_are_due(&self) -> bool {
        self.state.decodes_are_due()
    }
    /// Under `Order::Fair`, skips the key of a deferred waiting sequence if the reason concerns
    /// only that key. True if it was skipped; false if the sequence blocks those behind it.
    pub fn pass_over(&mut self, entry: u32, reason: DeferReason) -> bool {
        let is_own =
            matches!(reason, DeferReason::TokenBudget | DeferReason::Sibling | DeferReason::TokenInFlight);
        let passes = is_own && self.state.requests.waiting().is_fair();
        if passes {
            self.state.requests.pass_over(self.sequence(entry).params().key);
        }
        passes
    }

    /// Schedules a row: checks the token budget, finds slots and commits them to the row.
    #[inline]
    fn schedule_row(&mut self, entry: u32, feed: Feed, drafts: u32) -> Result<(), DeferReason> {
        if let Some(reason) = self.must_wait(entry) {
            return Err(reason);
        }
        let token_budget = self.token_budget();
        let SchedulerState { requests, kv, schedule, prefill_shares, .. } = &mut *self.state;
        let sequence = &mut requests[entry];
        let (tokens, mut rectangle) = (feed.tokens.min(sequence.to_feed()), feed.rectangle);
        if tokens + rectangle.redirected + drafts > token_budget || tokens == 0 {
            return Err(DeferReason::TokenBudget);
        }
        let mut slots = kv.budget().growth(sequence, tokens + drafts + rectangle.ahead);
        // Reserved slots are available by construction.
        if slots > sequence.reserved {
            kv.find_space(sequence, slots)?;
        }
        if rectangle.ahead > 0 {
            kv.preallocate(sequence, tokens + rectangle.ahead)?;
            slots = kv.budget().growth(sequence, tokens + drafts);
        }
        rectangle.redirected = rectangle.redirected.min(sequence.claimed);
        let kind = if sequence.prefilling {
            RowKind::Prefill
        } else if sequence.to_feed() == 1 && rectangle.redirected + drafts == 0 {
            RowKind::Decode
        } else {
            RowKind::MultiDecode
        };
        let row = ScheduledRow {
            entry,
            seq: sequence.cache.unwrap_or(SeqId(u64::MAX)),
            kind,
            tokens,
            drafts,
            rectangle,
            commitment: kv.budget_mut().commit(sequence, slots),
        };
        if kind.is_prefill() {
            prefill_shares.feed(sequence.cold.params.key, tokens);
        }
        schedule.push(sequence, row);
        Ok(())
    }

    /// The running sequence to preempt for slots, among indices from `first` on in order of
    /// admission: the sequence admitted last; under `Order::Fair`, the last of the key with the
    /// largest dominant share.
    pub fn preemption_victim(&self, first: usize) -> Option<u32> {
        self.state.preemption_victim(first).and_then(|i| self.running_at(i))
    }

    /// Preempts a running sequence by recomputation: it returns to the front of the queue. False if
    /// it does not run or is scheduled in this step already.
    pub fn preempt(&mut self, entry: u32) -> bool {
        let is_scheduled = self.state.schedule.rows().iter().any(|row| row.entry == entry);
        let preempts = self.sequence(entry).status == Status::Running && !is_scheduled;
        if preempts {
            self.state.preempt(entry);
            self.state.defer(entry, DeferReason::Preempted);
        }
        preempts
    }

    /// Ends a sequence that will never fit the KV cache, with `Finish::Capacity` and the outputs it
    /// has.
    pub fn finish_capacity(&mut self, entry: u32) {
        self.state.finish_capacity(entry, self.now);
    }
}
