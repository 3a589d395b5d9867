//! The scheduler core: admits requests into the waiting queue, builds one step at a time, and
//! commits its results.
//!
//! Driving sequence: `Core::add` → `Core::schedule` → the executor runs the step →
//! `Core::postprocess`, or `Core::cancel` / `Core::reject` if it was not run.
//!
//! `Core::schedule`:
//!
//! 1. Run the policy: it admits waiting requests and picks prefill chunks and decode rows.
//! 2. Claim KV slots and plan the step (`Core::claim` in make.rs). A row without space is deferred.
//! 3. If nothing could run, nothing is in flight and a running request lacks slots: evict retained
//!    session K/V, else preempt the request admitted last, else end the only one with
//!    `Finish::Capacity`. Then retry.
//! 4. Fill the batch and close the `StepRecord`.
//!
//! Invariants: several steps may be in flight and they return in order. A request gets exactly one
//! final event. A steady decode step allocates nothing (`tests/no_allocation.rs`). Must not read a
//! clock or know the executor. Guarded by `tests/core_life.rs` and `tests/toy`; `benches/step.rs`
//! measures the host cost.

use crate::{
    Arrival, Costs, Desk, DraftStats, Event, Fault, Finish, Held, Limits, Nanos, Order, Outbox, Policy,
    Reason, Refusal, Request, RequestId, Sequence, StateSlots, Status, StepRecord, Timings,
    kept::{KeptSessions, Shortage},
    queue::Queue,
    slab::Slab,
    stop::Plain,
    world::World,
};
use kvasir_exec::{PoolRow, SequenceSpec, Step};
use kvasir_kv::blocks::BlockSize;
use kvasir_kv::{Cache, StepId, Token};

/// A policy, a cache, a queue and the sequences: everything that decides, and nothing that runs.
///
/// A core is driven from outside: [`Core::add`], [`Core::schedule`], then whoever runs the step gives it to
/// [`Core::postprocess`], or to [`Core::cancel`] if it was never run. Several steps may be under way; they come back
/// in order. Time is handed in. After the first steps nothing here takes memory while the same sequences decode.
pub struct Core {
    pub(crate) world: World,
    policy: Box<dyn Policy>,
    costs: Costs,
    next_step: StepId,
    next_number: u64,
    /// Steps to use again. They travel in their boxes, so that handing one over copies a pointer.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Step>>,
    /// Draft tokens that every decode row has room for.
    spec_steps: u32,
    pub(crate) frontier: Vec<i32>,
    pub(crate) accepted: Vec<u32>,
    pub(crate) stats: DraftStats,
}

impl Core {
    /// A core with nothing in it.
    pub fn new(limits: Limits, order: Order, policy: Box<dyn Policy>, cache: Box<dyn Cache>) -> Self {
        let mut cache = cache;
        let rows = (0..limits.max_num_seqs).rev().map(PoolRow).collect();
        let world = World {
            block: cache.block_size().max(1),
            size: BlockSize::new(cache.block_size().max(1)),
            base: cache.base(),
            // Where blocks are larger a fork would move the rows of the last one.
            forks: cache.block_size() == 1 && cache.sequences().is_ok() && !policy.redirects(),
            scattered: false,
            has_prefix: limits.prefix_cache && cache.prefix().is_ok(),
            publish_at: policy.publish_at(),
            cache,
            limits,
            slab: Slab::default(),
            kept: KeptSessions::default(),
            queue: Queue::new(order),
            running: Vec::new(),
            free_rows: rows,
            state_slots: StateSlots::new(limits.state_slots),
            picks: Vec::new(),
            picked_tokens: 0,
            picked_slots: 0,
            prefilling: 0,
            promised: 0,
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

    /// Hands in what steps cost, for policies that keep to a target.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }

    /// Holds newcomers back while somebody runs, as a [`Coalescer`](crate::Coalescer) has decided for the next step.
    pub fn hold_newcomers(&mut self, hold: bool) {
        self.world.coalescing = hold;
    }

    /// Announces how many drafts a decode row may carry. A sequence then waits for its token before it goes on.
    pub fn set_spec_steps(&mut self, tokens: u32) {
        self.spec_steps = tokens;
        self.world.speculates = tokens > 0;
    }

    /// Gives a request drafts for its next decode; with `parents` they are a tree, whose node 0 is the newest
    /// committed token. Dropped when it is not running or parents make no sense.
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
            sequence.rest.parents.clear();
            sequence.rest.parents.extend_from_slice(parents);
        }
    }

    /// Queues a request. One that can never run is refused, here and with an event.
    pub fn add(&mut self, request: Request, now: Nanos) -> Result<RequestId, Refusal> {
        let refused = self.check(&request, 1).err();
        self.admit(request, refused, now)
    }

    /// Queues `n` requests with one prompt, noise of their own each and consecutive tags. The first computes the prompt; where the cache
    /// shares prefixes or can fork, the others wait for it. All are queued, or all are refused, each with an event.
    pub fn add_siblings(&mut self, request: Request, n: u32, now: Nanos) -> Result<Vec<RequestId>, Refusal> {
        if n == 0 {
            return Err(Refusal::BadParameter(crate::Parameter::N));
        }
        let refused = self.check(&request, n).err();
        let mut ids: Vec<RequestId> = Vec::new();
        for (i, mut sibling) in std::iter::repeat_n(request, n as usize).enumerate() {
            if i > 0 {
                sibling.tag = sibling.tag.wrapping_add(i as u64);
                // They share a prompt, which is scored once.
                sibling.params.sampling.prompt_logprobs = None;
                sibling.params.sampling.seed = sibling.params.sampling.seed.wrapping_add(i as u64);
            }
            let Ok(id) = self.admit(sibling, refused, now) else { continue };
            if i > 0 && (self.world.has_prefix || self.world.forks) {
                self.world.slab[id.index()].rest.leader = Some(ids[0]);
            }
            ids.push(id);
        }
        refused.map_or(Ok(ids), Err)
    }

    /// Queues a request, or refuses it.
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

    fn enter(&mut self, request: Request, now: Nanos) -> RequestId {
        let prompt_len = request.prompt.len() as u32;
        let number = self.next_number;
        self.next_number += 1;
        let mut sequence = Sequence::new(request);
        let room = self.world.limits.max_model_len.saturating_sub(prompt_len).max(1);
        sequence.stops = Plain::of(&sequence.rest.params, room);
        sequence.rest.room = room;
        sequence.rest.timings = Timings { arrived: now, ..Timings::default() };
        sequence.rest.number = number;
        let entry = self.world.slab.insert(sequence);
        let sequence = &self.world.slab[entry];
        self.world.arrived.push(Arrival {
            request: sequence.id,
            number,
            tag: sequence.tag,
            prompt: prompt_len,
            max_tokens: sequence.rest.params.max_tokens,
        });
        sequence.id
    }

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

    /// Ends a request because its client left. False if it has ended already.
    pub fn abort(&mut self, id: RequestId, now: Nanos) -> bool {
        self.end(id, None, Finish::Aborted, now)
    }

    /// Ends a request after `keep` outputs because somebody outside found a stop in its text. False if it has ended
    /// already; it then ended no later than that.
    pub fn stop_at(&mut self, id: RequestId, keep: u32, now: Nanos) -> bool {
        self.end(id, Some(keep), Finish::StopText, now)
    }

    /// Sends a running request back to the front of the queue; it is computed again later, and nothing is lost.
    pub fn preempt(&mut self, id: RequestId) -> bool {
        match self.world.slab.find(id) {
            Some(entry) if self.world.slab[entry].status == Status::Running => {
                self.world.preempt(entry);
                true
            }
            _ => false,
        }
    }

    fn end(&mut self, id: RequestId, keep: Option<u32>, finish: Finish, now: Nanos) -> bool {
        let Some(entry) = self.world.slab.find(id) else { return false };
        let sequence = &mut self.world.slab[entry];
        if sequence.status == Status::Finished {
            return false;
        }
        let seen = sequence.outputs_len();
        if let Some(keep) = keep {
            // The cache keeps what it has; only the answer is shorter.
            sequence.computed = sequence.computed.min(sequence.prompt_len + keep);
            sequence.truncate(sequence.prompt_len + keep);
        }
        self.world.finish(entry, finish, None, seen, now);
        self.world.sweep();
        true
    }

    /// Makes the next step, or none if nothing can run now.
    pub fn schedule(&mut self, now: Nanos) -> Option<Box<Step>> {
        let world = &mut self.world;
        world.record.reset(now, &mut world.arrived);
        world.record.costs = self.costs;
        world.tidy();
        let mut step = self.spare.pop().unwrap_or_default();
        let id = self.next_step;
        let mut made = self.try_schedule(id, &mut step, now);
        // Each time somebody leaves, so that in the end somebody has room.
        let mut tries = self.world.running.len() + self.world.kept.iter().count();
        while !made && tries > 0 && self.is_stuck() {
            self.make_way(now);
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

    fn try_schedule(&mut self, id: StepId, step: &mut Step, now: Nanos) -> bool {
        let world = &mut self.world;
        world.round += 1;
        world.picks.clear();
        world.picked_tokens = 0;
        world.picked_slots = 0;
        world.record.held.clear();
        world.record.rectangle.reset();
        self.policy.schedule(&mut Desk { world, now, costs: self.costs });
        self.expect_tables(step);
        self.claim(id, step)
    }

    /// Takes memory for the block tables that the running requests may grow to, so that later steps take none.
    fn expect_tables(&mut self, step: &mut Step) {
        let world = &mut self.world;
        if !world.record.admitted.is_empty() {
            let blocks = |entry: &u32| world.slab[*entry].longest().div_ceil(world.block) as usize;
            let most = 2 * (world.cache.capacity() / world.block) as usize;
            world.table_blocks = world.running.iter().map(blocks).sum::<usize>().min(most);
        }
        step.plan.expect(world.table_blocks, world.running.len());
    }

    /// Whether a running request has no room, nobody else can be fed and nothing on its way could change that.
    fn is_stuck(&self) -> bool {
        let world = &self.world;
        let no_room = |held: &Held| {
            let entry = world.slab.find(held.request);
            entry.is_some_and(|entry| world.slab[entry].status == Status::Running)
                && matches!(held.reason, Reason::NoRoom { .. } | Reason::Lease { .. })
        };
        world.in_flight == 0 && world.record.held.iter().any(no_room)
    }

    /// Evicts retained K/V where that frees anything, else preempts the request admitted last; if
    /// it runs alone, the cache is too small for it, and it ends with what it has. What is leased
    /// with nothing in flight waits for row moves, which a preemption makes needless.
    fn make_way(&mut self, now: Nanos) {
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

    fn close_record(&mut self, step: Option<&Step>) {
        let world = &mut self.world;
        world.record.step = step.map(|step| step.batch.step);
        world.record.kind = step.map_or(world.record.kind, |step| step.batch.kind);
        world.record.waiting = world.queue.len() as u32;
        world.record.running = world.running.len() as u32;
        world.record.room = world.cache.room();
        world.record.promised = world.promised;
    }

    /// What the last call of [`Core::schedule`] decided.
    pub fn record(&self) -> &StepRecord {
        &self.world.record
    }

    /// Why a request did not run in the last step; none if it did or is unknown.
    pub fn reason(&self, id: RequestId) -> Option<Reason> {
        let sequence = self.sequence(id)?;
        let record = &self.world.record;
        let held = record.held.iter().rev().find(|held| held.request == id).map(|held| held.reason);
        held.or(match sequence.status {
            _ if sequence.seen_in == self.world.round => None,
            Status::Waiting => Some(record.rest_waiting.unwrap_or(Reason::Behind)),
            Status::Running => record.rest_running,
            Status::Finished => None,
        })
    }

    /// Keeps a step's memory for a later one.
    pub fn recycle(&mut self, step: Box<Step>) {
        self.spare.push(step);
    }

    /// Events since they were taken last; the caller clears what it has delivered.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.world.outbox
    }

    /// The events alone.
    pub fn events(&self) -> &[Event] {
        &self.world.outbox.events
    }

    /// Token-pool rows given to sequences since this was asked last. An executor must know them before the next step.
    pub fn take_binds(&mut self) -> std::vec::Drain<'_, (PoolRow, SequenceSpec)> {
        self.world.binds.drain(..)
    }

    /// A live request.
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

    /// When the request arrived that has waited longest: what a [`Coalescer`](crate::Coalescer) is told of this replica.
    pub fn oldest_waiting(&self) -> Option<Nanos> {
        self.waiting().map(|sequence| sequence.rest.timings.arrived).min()
    }

    /// Tokens of prompts under way that are still to be fed.
    pub fn prompt_tokens_left(&self) -> u64 {
        let partial = self.running().filter(|sequence| sequence.is_prefilling());
        partial.map(|sequence| u64::from(sequence.to_feed())).sum()
    }

    /// Whether nothing waits, runs or is in flight.
    pub fn is_idle(&self) -> bool {
        self.world.queue.len() == 0 && self.world.running.is_empty() && self.world.in_flight == 0
    }

    /// Steps scheduled that have not come back.
    pub fn steps_in_flight(&self) -> u32 {
        self.world.in_flight
    }

    /// The cache.
    pub fn cache(&self) -> &dyn Cache {
        &*self.world.cache
    }

    /// The cache, for sessions' own verbs between steps.
    pub fn cache_mut(&mut self) -> &mut dyn Cache {
        &mut *self.world.cache
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// What may never be exceeded.
    pub fn limits(&self) -> &Limits {
        &self.world.limits
    }

    /// Drafts and how many of them were right.
    pub fn draft_stats(&self) -> &DraftStats {
        &self.stats
    }

    /// Ends everybody because the executor is gone.
    pub fn fail_all(&mut self, fault: Fault, now: Nanos) {
        self.world.fail_all(fault, now);
    }

    /// Walks all bookkeeping and reports the first thing that does not add up.
    pub fn check_invariants(&self) -> Result<(), String> {
        crate::check::check(&self.world)
    }
}
