//! State of the scheduler: the live requests, the KV cache, the step under construction and its
//! record, with the transitions of a request that involve several of them.
//!
//! Transitions: preempt (running → waiting, K/V released, recomputed later), shift (preempt, drop
//! some tokens) and finish (any → finished, K/V published, then retained for the session or
//! released). A finished request is reaped once no step in flight names it, and gets no further event.

use crate::request::event::{Outbox, Summary};
use crate::request::finish::{Fault, Finish, Refusal};
use crate::request::ids::RequestId;
use crate::request::sequence::{Sequence, Status};
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::fair_share::PrefillShares;
use crate::scheduler::kv_manager::KvManager;
use crate::scheduler::kv_manager::admission::{Activity, Fork};
use crate::scheduler::limits::Limits;
use crate::scheduler::record::{Arrival, Deferral, StepRecord};
use crate::scheduler::requests::Requests;
use crate::scheduler::schedule::Schedule;
use kvasir_exec::{PoolRow, SequenceSpec, StepKind};
use kvasir_kv::StepId;

/// The parts of a scheduler besides its policy.
pub(crate) struct SchedulerState {
    pub(crate) limits: Limits,
    pub(crate) requests: Requests,
    pub(crate) kv: KvManager,
    pub(crate) schedule: Schedule,
    pub(crate) record: StepRecord,
    /// Requests that arrived since the last `schedule` call.
    pub(crate) arrived: Vec<Arrival>,
    /// Requests whose context shifted since the last `schedule` call.
    pub(crate) shifted: Vec<RequestId>,
    pub(crate) outbox: Outbox,
    /// Executor rows bound since the last `Core::take_binds`.
    pub(crate) binds: Vec<(PoolRow, SequenceSpec)>,
    pub(crate) steps_in_flight: u32,
    /// Speculative decoding is on: a token must reach the host, and be drafted from, before the
    /// next feed.
    pub(crate) speculates: bool,
    /// Drafts are verified also where fewer outputs are left than they are (`DraftWidth::Fixed`).
    pub(crate) verifies_all_drafts: bool,
    /// Admissions are deferred by prefill coalescing.
    pub(crate) coalescing: bool,
    /// Fair shares of keys are enforced by preemption (`share_preemption.rs`).
    pub(crate) preempts_for_shares: bool,
    /// Division of the step's prompt tokens among keys.
    pub(crate) prefill_shares: PrefillShares,
    /// The previous step held prompts only.
    pub(crate) is_after_prefill: bool,
}

impl SchedulerState {
    pub(crate) fn new(limits: Limits, requests: Requests, kv: KvManager) -> Self {
        Self {
            limits,
            requests,
            kv,
            schedule: Schedule::default(),
            record: StepRecord::default(),
            arrived: Vec::new(),
            shifted: Vec::new(),
            outbox: Outbox::default(),
            binds: Vec::new(),
            steps_in_flight: 0,
            speculates: false,
            verifies_all_drafts: false,
            coalescing: false,
            preempts_for_shares: false,
            prefill_shares: PrefillShares::default(),
            is_after_prefill: false,
        }
    }

    pub(crate) fn begin_attempt(&mut self) {
        self.schedule.begin();
        self.requests.begin_attempt();
        self.prefill_shares.clear();
        self.kv.budget_mut().begin_step();
        self.record.begin_attempt();
    }

    /// Writes the built step, queue lengths and pool usage into the record.
    pub(crate) fn end_record(&mut self, step: Option<(StepId, StepKind)>) {
        let record = &mut self.record;
        record.step = step.map(|(id, _)| id);
        record.kind = step.map_or(record.kind, |(_, kind)| kind);
        self.is_after_prefill = step.map_or(self.is_after_prefill, |(_, kind)| kind == StepKind::Prefill);
        record.waiting = self.requests.waiting().len() as u32;
        record.running = self.requests.running().len() as u32;
        record.usage = self.kv.cache().usage();
        record.reserved = self.kv.budget().reserved();
    }

    pub(crate) fn activity(&self) -> Activity {
        Activity { running: !self.requests.running().is_empty(), steps_in_flight: self.steps_in_flight }
    }

    /// The leader from which a sibling of parallel sampling forks.
    pub(crate) fn fork_of(&self, entry: u32) -> Fork {
        if self.kv.forks_siblings() { self.requests.leader_of(entry) } else { None }
    }

    pub(crate) fn defer(&mut self, entry: u32, reason: DeferReason) {
        let sequence = &mut self.requests[entry];
        self.schedule.settle(sequence);
        self.record.deferred.push(Deferral { request: sequence.id, reason });
    }

    pub(crate) fn publish(&mut self, entry: u32, milestone: bool) {
        self.kv.publish(&mut self.requests[entry], milestone);
    }

    /// Releases all K/V of `entry`, and its executor row unless a step in flight names that.
    fn release(&mut self, entry: u32) {
        self.kv.release(&mut self.requests[entry]);
        self.requests.set_prefilling(entry, false);
        self.requests.release_row(entry);
    }

    /// Preempts a running request by recomputation: publishes and releases its K/V and puts it at
    /// the front of the queue. Its tokens stay, those in flight included.
    pub(crate) fn preempt(&mut self, entry: u32) {
        self.publish(entry, true);
        let sequence = &mut self.requests[entry];
        sequence.status = Status::Waiting;
        sequence.cold.preemptions += 1;
        self.record.preempted.push(sequence.id);
        self.release(entry);
        self.requests.requeue(entry);
    }

    /// Context length of a sequence, in tokens: `max_model_len`, for a sequence that shifts at most
    /// the cache capacity.
    pub(crate) fn context_of(&self, sequence: &Sequence) -> u32 {
        let longest = self.limits.max_model_len;
        match sequence.cold.params.context_shift {
            None => longest,
            Some(_) => longest.min(self.kv.cache().shape().capacity.saturating_add(self.kv.base())),
        }
    }

    /// Context shift of a request that no step in flight names: drops a part of its tokens, releases its
    /// K/V and puts it at the front of the queue. False, and nothing changes, if it cannot shift.
    pub(crate) fn shift(&mut self, entry: u32) -> bool {
        let context = self.context_of(&self.requests[entry]);
        if self.requests[entry].cold.params.context_shift.is_none() {
            return false;
        }
        self.publish(entry, true);
        let sequence = &mut self.requests[entry];
        if !sequence.drop_half(context) {
            return false;
        }
        // One that was preempted waits already.
        if sequence.status == Status::Running {
            sequence.status = Status::Waiting;
            self.shifted.push(sequence.id);
            self.release(entry);
            self.requests.requeue(entry);
        }
        let sequence = &mut self.requests[entry];
        let before = sequence.stops.cap();
        sequence.fit_context(context);
        let more = sequence.stops.cap().saturating_sub(before);
        self.requests.charge(entry, more);
        true
    }

    /// Emits the final event of a request that was refused before it entered the queue, and frees
    /// its entry.
    pub(crate) fn refuse(&mut self, entry: u32, refusal: Refusal, now: Nanos) {
        let finish = Finish::Refused(refusal);
        let sequence = &mut self.requests[entry];
        sequence.cold.timings.finished = Some(now);
        self.outbox.push(sequence.id, sequence.tag, None, 0, &[], Some(finish));
        self.outbox.ended.push(Summary::of(sequence, finish));
        self.requests.remove(entry);
    }

    /// Ends a request: emits its outputs from `first` on with the finish reason, publishes or
    /// retains its K/V, and releases what is left. Takes it off the queue; the caller sweeps the
    /// running list.
    pub(crate) fn finish(
        &mut self,
        entry: u32,
        finish: Finish,
        step: Option<StepId>,
        first: u32,
        now: Nanos,
    ) {
        let sequence = &mut self.requests[entry];
        if sequence.status == Status::Finished {
            return;
        }
        sequence.cold.finish = Some(finish);
        sequence.cold.timings.last_token = sequence.last_token;
        sequence.cold.timings.finished = Some(now);
        let new = sequence.tokens.since(sequence.index_of_output(first));
        self.outbox.push(sequence.id, sequence.tag, step, first, new, Some(finish));
        self.outbox.ended.push(Summary::of(sequence, finish));
        self.requests.withdraw(entry);
        let sequence = &mut self.requests[entry];
        if !matches!(finish, Finish::Failed(_)) {
            self.kv.mark_answer_end(sequence);
            self.kv.publish(sequence, true);
            self.kv.retain(sequence, self.steps_in_flight);
        }
        if let Some(session) = sequence.cold.params.session {
            self.kv.retained_mut().0.report(session);
        }
        sequence.status = Status::Finished;
        self.release(entry);
        self.requests.reap(entry);
    }

    /// Ends a request outside a step, with all outputs that it has.
    pub(crate) fn finish_now(&mut self, entry: u32, finish: Finish, now: Nanos) {
        let first = self.requests[entry].outputs_len();
        self.finish(entry, finish, None, first, now);
    }

    /// Fails every request and evicts all retained sessions, because the executor is gone.
    pub(crate) fn fail_all(&mut self, fault: Fault, now: Nanos) {
        self.kv.evict_all();
        let all: Vec<u32> = self.requests.iter().map(|(entry, _)| entry).collect();
        all.into_iter().for_each(|entry| self.finish_now(entry, Finish::Failed(fault), now));
        self.requests.sweep();
    }

    /// Deadlock check: a running request lacks KV slots and no step is in flight that could free
    /// any.
    pub(crate) fn is_stuck(&self) -> bool {
        let lacks_slots = |deferral: &Deferral| {
            let entry = self.requests.find(deferral.request);
            entry.is_some_and(|entry| self.requests[entry].status == Status::Running)
                && deferral.reason.lacks_slots()
        };
        self.steps_in_flight == 0 && self.record.deferred.iter().any(lacks_slots)
    }

    /// Breaks a deadlock: evicts retained session K/V if that frees slots, else preempts the
    /// request admitted last; under `Order::Fair`, the last of the key with the largest dominant
    /// share. A request that runs alone is too large for the cache and ends with the outputs it
    /// has. Slots leased with no step in flight wait for slot copies, which a preemption makes
    /// unnecessary.
    pub(crate) fn preempt_for_space(&mut self, now: Nanos) {
        if self.kv.evict_for(1, true) {
            return;
        }
        match *self.requests.running() {
            [] => {}
            [alone] if self.kv.cache().usage().leased == 0 => self.finish_capacity(alone, now),
            [.., last] => {
                let victim = self.preemption_victim(0).map(|i| self.requests.running()[i]);
                self.preempt(victim.unwrap_or(last));
            }
        }
    }

    /// Ends a request that will never fit the KV cache, with the outputs it has.
    pub(crate) fn finish_capacity(&mut self, entry: u32, now: Nanos) {
        self.finish_now(entry, Finish::Capacity, now);
        self.requests.sweep();
    }

    /// Compacts the cache when a single request is left on scattered cells, so that its attention
    /// takes the contiguous path again. Only while nothing is in flight; the next step carries the
    /// slot copies.
    pub(crate) fn compact(&mut self) {
        if !self.kv.is_scattered() || self.steps_in_flight > 0 {
            return;
        }
        let alone = match *self.requests.running() {
            [] => None,
            [alone] => Some(alone),
            _ => return,
        };
        // Static-shape devices make no slot copies.
        let alone = alone.filter(|_| self.record.rectangle.is_empty());
        if self.kv.compact(alone.map(|alone| &self.requests[alone]))
            && let Some(alone) = alone
        {
            self.requests.copies_are_due(alone);
        }
    }
}
