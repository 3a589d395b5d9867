//! The scheduler core: admits requests into the waiting queue, builds one step at a time, and
//! commits its results.
//!
//! Driving sequence: `Core::add` → `Core::schedule` → the executor runs the step →
//! `Core::postprocess`, or `Core::cancel` / `Core::reject` if it was not run.
//!
//! `Core::schedule`:
//!
//! 1. Run the policy: it admits waiting requests and picks prefill chunks and decode rows. Under
//!    `Order::Fair`, preempt for a key within its entitlement (`share_preemption.rs`) and repeat.
//! 2. Claim KV slots and plan the step (`step/build.rs`). A row without space is deferred.
//! 3. If nothing could run, nothing is in flight and a running request lacks slots: evict retained
//!    session K/V, else preempt the request admitted last, else end the only one with
//!    `Finish::Capacity`. Then retry.
//! 4. Fill the batch and close the `StepRecord`.
//!
//! Invariants: several steps may be in flight and they return in order. A request gets exactly one
//! final event. A steady decode step allocates nothing (`tests/no_allocation.rs`). Must not read a
//! clock or know the executor. Guarded by `tests/core_life.rs` and `tests/toy`; `benches/step.rs`
//! measures the host cost.

pub(crate) mod arrival;
pub(crate) mod kv_transfer;
#[cfg(feature = "replay")]
pub(crate) mod replay;
pub(crate) mod sessions;

use crate::request::event::{Event, Outbox};
use crate::request::finish::{Fault, Finish};
use crate::request::ids::RequestId;
use crate::request::proposal::Proposal;
use crate::request::sequence::{Sequence, Status};
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::KvManager;
use crate::scheduler::limits::{Costs, Limits};
use crate::scheduler::policy::Policy;
use crate::scheduler::queue::Order;
use crate::scheduler::record::StepRecord;
use crate::scheduler::requests::Requests;
use crate::scheduler::state::SchedulerState;
use crate::scheduler::view::SchedulerView;
use crate::speculation::control::SpeculationControl;
use crate::speculation::statistics::DraftStats;
use crate::speculation::width::DraftWidth;
use crate::step::build::StepBuilder;
use crate::step::commit::StepCommitter;
use kvasir_exec::{Abilities, Padding, PoolRow, SequenceSpec, Step, StepError};
use kvasir_kv::{Cache, CacheError, StepId};

/// The scheduler: a policy, the KV cache, the waiting queue and the table of sequences. It decides;
/// an executor runs. The caller passes the time in.
///
/// ```
/// # use kvasir_engine::{Chunked, Core, EventOutput, Limits, Mixing, Order, Request};
/// # use kvasir_exec::Executor;
/// # use kvasir_kv::{CacheConfig, CacheKind, build};
/// # use kvasir_sim::Toy;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let policy = Box::new(Chunked::new(256, Mixing::Off));
/// # let cache = build(CacheKind::Radix, &CacheConfig::new(256))?;
/// # let mut executor = Toy::new();
/// let mut core = Core::new(Limits::default(), Order::Fcfs, policy, cache);
/// core.add(Request { prompt: vec![1, 2, 3], ..Request::default() }, 0)?;
/// while let Some(step) = core.schedule(0) {
///     for (row, spec) in core.take_binds() {
///         executor.bind(row, spec);
///     }
///     let pending = executor.submit(step).map_err(|refused| refused.error)?;
///     let (step, result) = executor.wait(pending);
///     core.postprocess(&step, &result, 0);
///     for EventOutput { event, tokens, .. } in core.outbox().iter() {
///         println!("{}: {tokens:?} {:?}", event.tag, event.finish);
///     }
///     core.outbox().clear();
///     core.recycle(step);
/// }
/// assert!(core.is_idle());
/// # Ok(())
/// # }
/// ```
pub struct Core {
    state: SchedulerState,
    policy: Box<dyn Policy>,
    builder: StepBuilder,
    committer: StepCommitter,
    speculation: SpeculationControl,
    costs: Costs,
    next_number: u64,
}

impl Core {
    /// A core without requests. The cache must have no open sequence, and a dummy block if the
    /// policy redirects writes.
    pub fn new(limits: Limits, order: Order, policy: Box<dyn Policy>, cache: Box<dyn Cache>) -> Self {
        let kv = KvManager::new(cache, &limits, policy.publish_at(), policy.redirects());
        let requests = Requests::new(order, &limits, kv.cache().shape());
        let mut state = SchedulerState::new(limits, requests, kv);
        state.preempts_for_shares = order == Order::Fair && !policy.is_rectangular();
        Self {
            state,
            policy,
            builder: StepBuilder::default(),
            committer: StepCommitter::default(),
            speculation: SpeculationControl::default(),
            costs: Costs::default(),
            next_number: 1,
        }
    }

    /// Sets the measured step costs, for policies with a step-time target and for the eviction of
    /// checkpoints.
    pub fn set_costs(&mut self, costs: Costs) {
        if costs != self.costs {
            self.state.kv.set_recompute_costs(costs);
        }
        self.costs = costs;
    }

    /// Defers admissions while any request runs: prefill coalescing, as decided by a `Coalescer`
    /// for the next step.
    pub fn defer_admissions(&mut self, defer: bool) {
        self.state.coalescing = defer;
    }

    /// Allocates the next step id for a dummy step, which is not scheduled.
    pub(crate) fn allocate_step_id(&mut self) -> StepId {
        self.builder.allocate_id()
    }

    /// Enables speculative decoding with up to `tokens` drafts per decode row. A sequence is then
    /// not fed while its sampled token is still in flight.
    pub fn set_spec_steps(&mut self, tokens: u32) {
        self.builder.set_spec_steps(tokens);
        self.state.speculates = tokens > 0;
    }

    /// Sets how the number of drafts of a step is chosen; fixed until then.
    pub fn set_draft_width(&mut self, width: DraftWidth) {
        self.speculation.set_draft_width(width);
        self.state.verifies_all_drafts = width == DraftWidth::Fixed;
    }

    /// Lets the executor's draft model propose up to `depth` levels.
    pub fn set_model_depth(&mut self, depth: u32) {
        self.speculation.set_model_depth(depth);
    }

    /// Records the device times of a step, from which the number of drafts follows.
    pub(crate) fn observe_times(&mut self, step: &Step) {
        if !self.state.speculates {
            return;
        }
        self.speculation.observe_step(&step.batch, &step.output);
    }

    /// Enables KV events, which are off by default: clears the prefix cache and delivers its
    /// changes in the outbox. Fails if the cache has no prefix index, if prefix caching is off, and
    /// for a cache with a shared prefix.
    pub fn record_kv_events(&mut self) -> Result<(), CacheError> {
        self.state.kv.record_events()
    }

    /// Sets the drafts of a request's next decode. With parents they form a tree whose node 0 is
    /// the newest committed token. Ignored if the request is not running, a parent is malformed, or
    /// they form a tree and the cache has recurrent states or window groups. Such a cache truncates
    /// longer chains to what its states and windows support.
    pub fn set_drafts(&mut self, id: RequestId, drafts: &Proposal) {
        let supports_trees = !self.state.kv.has_states() && !self.state.kv.has_windows();
        let is_supported = drafts.parents.is_empty() || supports_trees;
        if let Some(entry) = self.state.requests.find(id)
            && self.state.requests[entry].status == Status::Running
            && drafts.is_sound()
            && is_supported
        {
            let max_drafts = self.state.kv.max_draft_chain();
            self.state.requests.set_drafts(entry, drafts, max_drafts);
        }
    }

    /// Ends a request because its client disconnected. False if it has ended already.
    pub fn abort(&mut self, id: RequestId, now: Nanos) -> bool {
        self.end(id, None, Finish::Aborted, now)
    }

    /// Ends a request after `keep` outputs because the detokenizer found a stop string in its text.
    /// False if it has ended already; its outputs may then be longer than `keep`.
    pub fn stop_at(&mut self, id: RequestId, keep: u32, now: Nanos) -> bool {
        self.end(id, Some(keep), Finish::StopText, now)
    }

    /// Ends a live request, truncating its outputs to `keep`. False if it has ended already.
    fn end(&mut self, id: RequestId, keep: Option<u32>, finish: Finish, now: Nanos) -> bool {
        let Some(entry) = self.state.requests.find(id) else { return false };
        let sequence = &mut self.state.requests[entry];
        if sequence.status == Status::Finished {
            return false;
        }
        let seen = sequence.outputs_len();
        if let Some(keep) = keep {
            // Only the answer is truncated; the cache keeps the K/V of the dropped tokens until
            // release.
            let len = sequence.index_of_output(keep);
            sequence.computed = sequence.computed.min(len);
            sequence.tokens.truncate(len);
        }
        self.state.finish(entry, finish, None, seen, now);
        self.state.requests.sweep();
        true
    }

    /// Preempts a running request by recomputation: it returns to the front of the queue and keeps
    /// its tokens. False if it does not run.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        match self.state.requests.find(id) {
            Some(entry) if self.state.requests[entry].status == Status::Running => {
                self.state.preempt(entry);
                true
            }
            _ => false,
        }
    }

    /// Builds the next step, or returns none if nothing can run now; see the module doc.
    ///
    /// The step is in flight from here on and must come back to exactly one of
    /// `Core::postprocess`, `Core::cancel` and `Core::reject`. Bind `Core::take_binds` before it is
    /// submitted. Cost: linear in running requests and in the blocks of the rows.
    pub fn schedule(&mut self, now: Nanos) -> Option<Box<Step>> {
        let SchedulerState { record, arrived, shifted, .. } = &mut self.state;
        record.begin(now, self.costs, arrived, shifted);
        self.state.compact();
        self.speculation.prune_drafts(&mut self.state.requests);
        let step = self.build_step(now);
        self.state.kv.recount_retained();
        step
    }

    /// Builds the next step. If no row can run, evicts sessions or preempts or ends requests and
    /// retries.
    fn build_step(&mut self, now: Nanos) -> Option<Box<Step>> {
        let mut step = self.builder.take();
        let mut built = self.try_schedule(&mut step, now);
        // Each try evicts, preempts or ends at least one request or session, so the loop
        // terminates.
        let mut tries = self.state.requests.running().len() + self.state.kv.retained().len();
        while !built && tries > 0 && self.state.is_stuck() {
            self.state.preempt_for_space(now);
            built = self.try_schedule(&mut step, now);
            tries -= 1;
        }
        if !built {
            self.builder.recycle(step);
            self.state.end_record(None);
            return None;
        }
        let SchedulerState { requests, schedule, limits, .. } = &mut self.state;
        let load = (requests.running().len() + requests.waiting().len()).min(limits.max_num_seqs as usize);
        self.speculation.plan_depth(requests, schedule, load as u32);
        self.builder.fill(&mut self.state, &mut step, &self.speculation);
        self.state.end_record(Some((step.batch.step, step.batch.kind)));
        Some(step)
    }

    /// Ends drafting by the executor's draft model for a request.
    pub(crate) fn unfollow(&mut self, id: RequestId) {
        if let Some(entry) = self.state.requests.find(id) {
            self.state.requests[entry].cold.followed = Some(false);
        }
    }

    /// One scheduling attempt: policy, then claim and plan. The policy runs again after each
    /// preemption for fair shares. False if no row can run.
    fn try_schedule(&mut self, step: &mut Step, now: Nanos) -> bool {
        // Bounds the loop: the policy may admit a preempted request again.
        let mut tries = self.state.requests.running().len();
        loop {
            self.state.begin_attempt();
            self.policy.schedule(&mut SchedulerView::new(&mut self.state, now, self.costs));
            let policy = &*self.policy;
            let reserve_to = |state: &SchedulerState, entry: u32| {
                policy.reserve_to(&state.requests[entry], state.kv.cache().shape().capacity)
            };
            if tries == 0 || !self.state.preempt_for_share(reserve_to) {
                break;
            }
            tries -= 1;
        }
        self.builder.claim(&mut self.state, step, now)
    }

    /// Commits the results of a step, or fails its sequences. Steps must come back in the order
    /// they were scheduled, each once, and after `Ok` with their outputs filled in; a request whose
    /// output is missing fails.
    pub fn postprocess(&mut self, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        self.committer.postprocess((&mut self.state, &mut self.speculation), step, result, now);
    }

    /// Cancels the newest step, which must not have run. Restores everything except admissions.
    pub fn cancel(&mut self, step: &Step) {
        self.committer.cancel(&mut self.state, step);
    }

    /// Cancels the newest step, which the executor refused, and fails its sequences.
    pub fn reject(&mut self, step: &Step, error: &StepError, now: Nanos) {
        self.committer.reject(&mut self.state, step, error, now);
    }

    /// The decisions of the last `Core::schedule` call.
    pub fn record(&self) -> &StepRecord {
        &self.state.record
    }

    /// Why the last step deferred a request; none if it ran or is unknown.
    pub fn reason(&self, id: RequestId) -> Option<DeferReason> {
        let sequence = self.sequence(id)?;
        let record = &self.state.record;
        let held = record.deferred.iter().rev().find(|held| held.request == id).map(|held| held.reason);
        held.or(match sequence.status {
            _ if self.state.schedule.is_settled(sequence) => None,
            Status::Waiting => Some(record.rest_waiting.unwrap_or(DeferReason::Behind)),
            Status::Running => record.rest_running,
            Status::Finished => None,
        })
    }

    /// Returns a step that is no longer in flight, for reuse of its memory.
    pub fn recycle(&mut self, step: Box<Step>) {
        self.builder.recycle(step);
    }

    /// Undelivered events. The caller clears the outbox after delivery.
    pub fn outbox(&mut self) -> &mut Outbox {
        let (retained, _) = self.state.kv.retained_mut();
        self.state.outbox.retained.extend(retained.take_reports());
        self.state.kv.take_events(&mut self.state.outbox.kv_events);
        &mut self.state.outbox
    }

    /// The events of the outbox.
    pub fn events(&self) -> &[Event] {
        &self.state.outbox.events
    }

    /// Executor rows bound to sequences since the last call. The executor must bind them before the
    /// next step is submitted.
    pub fn take_binds(&mut self) -> std::vec::Drain<'_, (PoolRow, SequenceSpec)> {
        self.state.binds.drain(..)
    }

    /// A live request; none once it has been reaped.
    pub fn sequence(&self, id: RequestId) -> Option<&Sequence> {
        self.state.requests.find(id).map(|entry| &self.state.requests[entry])
    }

    /// Running requests in order of admission.
    pub fn running(&self) -> impl Iterator<Item = &Sequence> {
        self.state.requests.running().iter().map(|entry| &self.state.requests[*entry])
    }

    /// Waiting requests in the order of the queue.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.state.requests.waiting().iter().map(|entry| &self.state.requests[entry])
    }

    /// Number of waiting and of running requests.
    pub fn counts(&self) -> (usize, usize) {
        (self.state.requests.waiting().len(), self.state.requests.running().len())
    }

    /// Whether nothing waits, runs or is in flight.
    pub fn is_idle(&self) -> bool {
        self.state.requests.waiting().len() == 0
            && self.state.requests.running().is_empty()
            && self.state.steps_in_flight == 0
    }

    /// Steps scheduled and not yet postprocessed or canceled.
    pub fn steps_in_flight(&self) -> u32 {
        self.state.steps_in_flight
    }

    /// The KV cache.
    pub fn cache(&self) -> &dyn Cache {
        self.state.kv.cache()
    }

    /// The KV cache, for direct operations between steps. The caller must leave the sequences of
    /// live requests and sessions as they are.
    pub fn cache_mut(&mut self) -> &mut dyn Cache {
        self.state.kv.cache_mut()
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// How its steps are padded for an executor: to the rectangles of its policy, and to the batch
    /// sizes within its limits.
    pub fn padding(&self, abilities: &Abilities) -> Padding {
        let block = self.policy.is_rectangular().then(|| self.cache().shape().block_size);
        Padding::new(abilities, self.cache().shape().dummy_slot, block, self.limits().graph_max_batch)
    }

    /// Whether decode rows may verify drafts under its policy.
    pub fn verifies_drafts(&self) -> bool {
        self.policy.verifies_drafts()
    }

    /// The scheduler limits.
    pub fn limits(&self) -> &Limits {
        &self.state.limits
    }

    /// Draft acceptance statistics.
    pub fn draft_stats(&self) -> &DraftStats {
        self.speculation.stats()
    }

    /// Fails every request and drops all retained sessions, because the executor is gone.
    pub fn fail_all(&mut self, fault: Fault, now: Nanos) {
        self.state.fail_all(fault, now);
    }

    /// Runs the consistency checker and returns the first violation. Cost: linear in live sequences
    /// times running ones.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.state.check_invariants()
    }
}
