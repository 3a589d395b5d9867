//! The scheduler core: admits requests into the waiting queue, builds one step at a time, and
//! commits its results.
//!
//! Driving sequence: `Core::add` → `Core::schedule` → the executor runs the step →
//! `Core::postprocess`, or `Core::cancel` / `Core::reject` if it was not run.
//!
//! `Core::schedule`:
//!
//! 1. Run the policy: it admits waiting requests and picks prefill chunks and decode rows.
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

pub(crate) mod amend;

use crate::request::event::{Event, Outbox};
use crate::request::finish::{Fault, Finish, Refusal};
use crate::request::ids::RequestId;
use crate::request::params::Request;
use crate::request::sequence::{Sequence, Status};
use crate::request::stop::FastStop;
use crate::request::timings::{Nanos, Timings};
use crate::scheduler::budget::{Budget, StateSlots};
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::limits::{Costs, Limits};
use crate::scheduler::policy::Policy;
use crate::scheduler::queue::{Order, Queue};
use crate::scheduler::record::{Arrival, Deferral, StepRecord};
use crate::scheduler::retained_sessions::{RetainedSessions, Shortage};
use crate::scheduler::slab::Slab;
use crate::scheduler::state::World;
use crate::scheduler::view::SchedulerView;
use crate::step::drafts::DraftStats;
use kvasir_exec::{PoolRow, SequenceSpec, Step};
use kvasir_kv::{Cache, StepId, Token};

/// The scheduler: a policy, the KV cache, the waiting queue and the table of sequences. It decides;
/// an executor runs.
///
/// Call `Core::add`, then `Core::schedule`. After the executor has run the step, pass it to
/// `Core::postprocess`; pass a step that was never run to `Core::cancel`. Several steps may be in
/// flight and must return in order. The caller passes the time in. After the first steps, decoding
/// the same sequences makes no heap allocation.
pub struct Core {
    pub(crate) world: World,
    policy: Box<dyn Policy>,
    costs: Costs,
    next_step: StepId,
    next_number: u64,
    /// Free list of steps. They stay boxed, so that handing one over moves a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Step>>,
    /// Most draft tokens of a decode row (speculative decoding).
    spec_steps: u32,
    pub(crate) frontier: Vec<i32>,
    pub(crate) accepted: Vec<u32>,
    pub(crate) stats: DraftStats,
}

impl Core {
    /// A core without requests.
    pub fn new(limits: Limits, order: Order, policy: Box<dyn Policy>, cache: Box<dyn Cache>) -> Self {
        let mut cache = cache;
        let rows = (0..limits.max_num_seqs).rev().map(PoolRow).collect();
        let world = World {
            block: cache.block_size().max(1),
            budget: Budget::new(cache.block_size()),
            base: cache.base(),
            // With larger blocks a fork would have to copy the rows of the partly filled last
            // block.
            forks: cache.block_size() == 1 && cache.sequences().is_ok() && !policy.redirects(),
            scattered: false,
            has_prefix: limits.prefix_cache && cache.prefix().is_ok(),
            publish_at: policy.publish_at(),
            cache,
            limits,
            slab: Slab::default(),
            retained: RetainedSessions::default(),
            queue: Queue::new(order),
            running: Vec::new(),
            free_rows: rows,
            state_slots: StateSlots::new(limits.state_slots),
            rows: Vec::new(),
            scheduled_tokens: 0,
            prefilling: 0,
            record: StepRecord::default(),
            arrived: Vec::new(),
            outbox: Outbox::default(),
            binds: Vec::new(),
            claim_rows: Vec::new(),
            due: Vec::new(),
            speculates: false,
            drafted: false,
            coalescing: false,
            in_flight: 0,
            moves_due: false,
            table_blocks: 0,
            unswept: false,
            retired: StepId(0),
            round: 0,
        };
        Self {
            world,
            policy,
            costs: Costs::default(),
            next_step: StepId(1),
            next_number: 1,
            spare: Vec::new(),
            spec_steps: 0,
            frontier: Vec::new(),
            accepted: Vec::new(),
            stats: DraftStats::default(),
        }
    }

    /// Sets the measured step costs, for policies with a step-time target.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// Defers admissions while any request runs: prefill coalescing, as decided by a `Coalescer`
    /// for the next step.
    pub fn defer_admissions(&mut self, defer: bool) {
        self.world.coalescing = defer;
    }

    /// Enables speculative decoding with up to `tokens` drafts per decode row. A sequence is then
    /// not fed while its sampled token is still in flight.
    pub fn set_spec_steps(&mut self, tokens: u32) {
        self.spec_steps = tokens;
        self.world.speculates = tokens > 0;
    }

    /// Sets the drafts of a request's next decode. With `parents` they form a tree whose node 0 is
    /// the newest committed token. Ignored if the request is not running or `parents` is malformed.
    pub fn set_drafts(&mut self, id: RequestId, drafts: &[Token], parents: &[i32]) {
        let sane = parents.iter().zip(1i32..).all(|(parent, node)| (0..node).contains(parent));
        if let Some(entry) = self.world.slab.find(id)
            && self.world.slab[entry].status == Status::Running
            && sane
            && (parents.is_empty() || parents.len() == drafts.len())
        {
            self.world.drafted = true;
            let sequence = &mut self.world.slab[entry];
            sequence.drafts.clear();
            sequence.drafts.extend_from_slice(drafts);
            sequence.cold.parents.clear();
            sequence.cold.parents.extend_from_slice(parents);
        }
    }

    /// Queues a request. A request that can never run is refused: the error is returned and a final
    /// event is emitted.
    pub fn add(&mut self, request: Request, now: Nanos) -> Result<RequestId, Refusal> {
        let refused = self.check(&request, 1).err();
        self.admit(request, refused, now)
    }

    /// Queues `n` requests with one prompt (parallel sampling), with consecutive tags and seeds.
    /// The first computes the prompt; if the cache has prefix sharing or forks, the others wait for
    /// it. All are queued, or all are refused, each with an event.
    pub fn add_siblings(&mut self, request: Request, n: u32, now: Nanos) -> Result<Vec<RequestId>, Refusal> {
        if n == 0 {
            return Err(Refusal::BadParameter(crate::request::finish::Parameter::N));
        }
        let refused = self.check(&request, n).err();
        let mut ids: Vec<RequestId> = Vec::new();
        for (i, mut sibling) in std::iter::repeat_n(request, n as usize).enumerate() {
            if i > 0 {
                sibling.tag = sibling.tag.wrapping_add(i as u64);
                // Prompt log-probabilities are computed once, for the first sibling.
                sibling.params.sampling.prompt_logprobs = None;
                sibling.params.sampling.seed = sibling.params.sampling.seed.wrapping_add(i as u64);
            }
            let Ok(id) = self.admit(sibling, refused, now) else { continue };
            if i > 0 && (self.world.has_prefix || self.world.forks) {
                self.world.slab[id.index()].cold.leader = Some(ids[0]);
            }
            ids.push(id);
        }
        refused.map_or(Ok(ids), Err)
    }

    /// Enters the request in the table, then queues or refuses it.
    fn admit(
        &mut self,
        request: Request,
        refused: Option<Refusal>,
        now: Nanos,
    ) -> Result<RequestId, Refusal> {
        let id = self.enter(request, now);
        let entry = id.index();
        if let Some(refusal) = refused {
            self.world.refuse(entry, refusal, now);
            return Err(refusal);
        }
        self.world.queue.push(entry, &self.world.slab[entry]);
        Ok(id)
    }

    /// Inserts a request into the table, assigns its arrival number and stop conditions, and
    /// records the arrival.
    fn enter(&mut self, request: Request, now: Nanos) -> RequestId {
        let prompt_len = request.prompt.len() as u32;
        let number = self.next_number;
        self.next_number += 1;
        let mut sequence = Sequence::new(request);
        let room = self.world.limits.max_model_len.saturating_sub(prompt_len).max(1);
        sequence.stops = FastStop::of(&sequence.cold.params, room);
        sequence.cold.room = room;
        sequence.cold.timings = Timings { arrived: now, ..Timings::default() };
        sequence.cold.number = number;
        let entry = self.world.slab.insert(sequence);
        let sequence = &self.world.slab[entry];
        self.world.arrived.push(Arrival {
            request: sequence.id,
            number,
            tag: sequence.tag,
            prompt: prompt_len,
            max_tokens: sequence.cold.params.max_tokens,
        });
        sequence.id
    }

    /// Admission-independent validation: prompt length, KV capacity, queue limit, parameters,
    /// policy.
    fn check(&self, request: &Request, n: u32) -> Result<(), Refusal> {
        let limits = &self.world.limits;
        let tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if tokens > limits.longest_prompt() {
            return Err(Refusal::TooLong { tokens, limit: limits.longest_prompt() });
        }
        if tokens <= self.world.base {
            return Err(Refusal::WithinPrefix { tokens, prefix: self.world.base });
        }
        let (needed, capacity) = (self.world.own_slots(tokens), self.world.cache.capacity());
        if needed > capacity {
            return Err(Refusal::NeverFits { needed, capacity });
        }
        if request.params.stateful && limits.state_slots == Some(0) {
            return Err(Refusal::NoState);
        }
        if self.world.queue.len() + n as usize > limits.max_waiting as usize {
            return Err(Refusal::QueueFull { limit: limits.max_waiting });
        }
        request.params.check()?;
        self.policy.accepts(tokens, limits)
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

    /// Preempts a running request by recomputation: it returns to the front of the queue and keeps
    /// its tokens. False if it does not run.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        match self.world.slab.find(id) {
            Some(entry) if self.world.slab[entry].status == Status::Running => {
                self.world.preempt(entry);
                true
            }
            _ => false,
        }
    }

    /// Ends a live request, truncating its outputs to `keep`. False if it has ended already.
    fn end(&mut self, id: RequestId, keep: Option<u32>, finish: Finish, now: Nanos) -> bool {
        let Some(entry) = self.world.slab.find(id) else { return false };
        let sequence = &mut self.world.slab[entry];
        if sequence.status == Status::Finished {
            return false;
        }
        let seen = sequence.outputs_len();
        if let Some(keep) = keep {
            // Only the answer is truncated; the cache keeps the K/V of the dropped tokens until
            // release.
            sequence.computed = sequence.computed.min(sequence.prompt_len + keep);
            sequence.truncate(sequence.prompt_len + keep);
        }
        self.world.finish(entry, finish, None, seen, now);
        self.world.sweep();
        true
    }

    /// Builds the next step, or returns none if nothing can run now. The step is in flight from
    /// here on; see the module doc.
    pub fn schedule(&mut self, now: Nanos) -> Option<Box<Step>> {
        let world = &mut self.world;
        world.record.reset(now, &mut world.arrived);
        world.record.costs = self.costs;
        world.compact();
        let mut step = self.spare.pop().unwrap_or_default();
        let id = self.next_step;
        let mut made = self.try_schedule(id, &mut step, now);
        // Each try evicts, preempts or ends at least one request or session, so the loop
        // terminates.
        let mut tries = self.world.running.len() + self.world.retained.iter().count();
        while !made && tries > 0 && self.is_stuck() {
            self.preempt_for_space(now);
            made = self.try_schedule(id, &mut step, now);
            tries -= 1;
        }
        if !made {
            self.spare.push(step);
            self.close_record(None);
            return None;
        }
        self.next_step = StepId(id.0 + 1);
        self.fill(&mut step, self.spec_steps);
        self.close_record(Some(&step));
        Some(step)
    }

    /// One scheduling attempt: policy, then claim and plan. False if no row can run.
    fn try_schedule(&mut self, id: StepId, step: &mut Step, now: Nanos) -> bool {
        let world = &mut self.world;
        world.round += 1;
        world.rows.clear();
        world.scheduled_tokens = 0;
        world.budget.begin_step();
        world.record.held.clear();
        world.record.rectangle.reset();
        self.policy.schedule(&mut SchedulerView { world, now, costs: self.costs });
        self.expect_tables(step);
        self.claim(id, step)
    }

    /// Reserves host memory in the plan for the longest block tables of the running requests, so
    /// that steady decode steps do not allocate.
    fn expect_tables(&mut self, step: &mut Step) {
        let world = &mut self.world;
        if !world.record.admitted.is_empty() {
            let blocks = |entry: &u32| world.slab[*entry].longest().div_ceil(world.block) as usize;
            let most = 2 * (world.cache.capacity() / world.block) as usize;
            world.table_blocks = world.running.iter().map(blocks).sum::<usize>().min(most);
        }
        step.plan.expect(world.table_blocks, world.running.len());
    }

    /// Deadlock check: a running request lacks KV slots and no step is in flight that could free
    /// any.
    fn is_stuck(&self) -> bool {
        let world = &self.world;
        let no_room = |deferral: &Deferral| {
            let entry = world.slab.find(deferral.request);
            entry.is_some_and(|entry| world.slab[entry].status == Status::Running)
                && matches!(deferral.reason, DeferReason::NoRoom { .. } | DeferReason::Lease { .. })
        };
        world.in_flight == 0 && world.record.held.iter().any(no_room)
    }

    /// Breaks a deadlock: evicts retained session K/V if that frees slots, else preempts the
    /// request admitted last. A request that runs alone is too large for the cache and ends with
    /// the outputs it has. Slots leased with no step in flight wait for row moves, which a
    /// preemption makes unnecessary.
    fn preempt_for_space(&mut self, now: Nanos) {
        let world = &mut self.world;
        if world.find_victims(Shortage { slots: 1, leased_too: true, ..Shortage::default() }) {
            return world.evict_victims();
        }
        match world.running.as_slice() {
            [] => {}
            [alone] if world.cache.room().leased == 0 => {
                let (alone, first) = (*alone, world.slab[*alone].outputs_len());
                world.finish(alone, Finish::Capacity, None, first, now);
                world.sweep();
            }
            [.., last] => world.preempt(*last),
        }
    }

    /// Writes the step, queue lengths and pool usage into the step record.
    fn close_record(&mut self, step: Option<&Step>) {
        let world = &mut self.world;
        world.record.step = step.map(|step| step.batch.step);
        world.record.kind = step.map_or(world.record.kind, |step| step.batch.kind);
        world.record.waiting = world.queue.len() as u32;
        world.record.running = world.running.len() as u32;
        world.record.room = world.cache.room();
        world.record.reserved = world.budget.reserved();
    }

    /// The decisions of the last `Core::schedule` call.
    pub fn record(&self) -> &StepRecord {
        &self.world.record
    }

    /// Why the last step deferred a request; none if it ran or is unknown.
    pub fn reason(&self, id: RequestId) -> Option<DeferReason> {
        let sequence = self.sequence(id)?;
        let record = &self.world.record;
        let held = record.held.iter().rev().find(|held| held.request == id).map(|held| held.reason);
        held.or(match sequence.status {
            _ if sequence.seen_in == self.world.round => None,
            Status::Waiting => Some(record.rest_waiting.unwrap_or(DeferReason::Behind)),
            Status::Running => record.rest_running,
            Status::Finished => None,
        })
    }

    /// Returns a step for reuse of its memory.
    pub fn recycle(&mut self, step: Box<Step>) {
        self.spare.push(step);
    }

    /// Undelivered events. The caller clears the outbox after delivery.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.world.outbox
    }

    /// The events of the outbox.
    pub fn events(&self) -> &[Event] {
        &self.world.outbox.events
    }

    /// Executor rows bound to sequences since the last call. The executor must bind them before the
    /// next step is submitted.
    pub fn take_binds(&mut self) -> std::vec::Drain<'_, (PoolRow, SequenceSpec)> {
        self.world.binds.drain(..)
    }

    /// A live request; none once it has been reaped.
    pub fn sequence(&self, id: RequestId) -> Option<&Sequence> {
        self.world.slab.find(id).map(|entry| &self.world.slab[entry])
    }

    /// Running requests in order of admission.
    pub fn running(&self) -> impl Iterator<Item = &Sequence> {
        self.world.running.iter().map(|entry| &self.world.slab[*entry])
    }

    /// Waiting requests in the order of the queue.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.world.queue.iter().map(|entry| &self.world.slab[entry])
    }

    /// Number of waiting and of running requests.
    pub fn counts(&self) -> (usize, usize) {
        (self.world.queue.len(), self.world.running.len())
    }

    /// Arrival time of the oldest waiting request, an input of `Coalescer`.
    pub fn oldest_waiting(&self) -> Option<Nanos> {
        self.waiting().map(|sequence| sequence.cold.timings.arrived).min()
    }

    /// Tokens still to be fed of running requests in prefill.
    pub fn prompt_tokens_left(&self) -> u64 {
        let partial = self.running().filter(|sequence| sequence.is_prefilling());
        partial.map(|sequence| u64::from(sequence.to_feed())).sum()
    }

    /// Whether nothing waits, runs or is in flight.
    pub fn is_idle(&self) -> bool {
        self.world.queue.len() == 0 && self.world.running.is_empty() && self.world.in_flight == 0
    }

    /// Steps scheduled and not yet postprocessed or canceled.
    pub fn steps_in_flight(&self) -> u32 {
        self.world.in_flight
    }

    /// The KV cache.
    pub fn cache(&self) -> &dyn Cache {
        &*self.world.cache
    }

    /// The KV cache, for direct operations between steps.
    pub fn cache_mut(&mut self) -> &mut dyn Cache {
        &mut *self.world.cache
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// The scheduler limits.
    pub fn limits(&self) -> &Limits {
        &self.world.limits
    }

    /// Draft acceptance statistics.
    pub fn draft_stats(&self) -> &DraftStats {
        &self.stats
    }

    /// Fails every request and drops all retained sessions, because the executor is gone.
    pub fn fail_all(&mut self, fault: Fault, now: Nanos) {
        self.world.fail_all(fault, now);
    }

    /// Runs the consistency checker and returns the first violation. Cost: linear in live sequences
    /// times running ones.
    pub fn check_invariants(&self) -> Result<(), String> {
        crate::scheduler::invariants::check(&self.world)
    }
}
