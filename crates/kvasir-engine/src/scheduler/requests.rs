//! The live requests: their table, the waiting queue, the running list, executor rows and live
//! recurrent states.
//!
//! Invariants (`invariants.rs`):
//!
//! - A waiting request is in the queue, a running one in the running list.
//! - The free rows and the requests together own each executor row exactly once. A row is freed
//!   only after the last step that names it.
//! - An entry is freed (`reap`) once its request has finished and no step in flight names it.

use crate::request::proposal::Proposal;
use crate::request::sequence::{SlotCopies, Status};
use crate::scheduler::budget::LiveStates;
use crate::scheduler::limits::Limits;
use crate::scheduler::queue::{Order, Queue};
use crate::scheduler::slab::Slab;
use kvasir_exec::PoolRow;
use kvasir_kv::{CacheShape, SeqId, StepId};
use std::ops::{Deref, DerefMut};

/// All live requests, addressed by their entry in the table.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    slab: Slab,
    queue: Queue,
    /// Entries of running requests, in order of admission.
    running: Vec<u32>,
    free_rows: Vec<PoolRow>,
    /// Live recurrent states of the requests that hold an executor row.
    live_states: LiveStates,
    prefilling: u32,
    /// `running` contains a request that has ended.
    unswept: bool,
    /// The next step carries slot copies of at least one request.
    copies_due: bool,
    /// At least one request has ever been given drafts.
    drafted: bool,
    /// Entries whose next token spills to the heap part of their `TailBuffered`.
    spilling: Vec<u32>,
}

impl Requests {
    pub(crate) fn new(order: Order, limits: &Limits, shape: &CacheShape) -> Self {
        Self {
            queue: Queue::new(order, limits, shape),
            free_rows: (0..limits.max_num_seqs).rev().map(PoolRow).collect(),
            live_states: LiveStates::new(limits.state_slots, shape.states),
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn running(&self) -> &[u32] {
        &self.running
    }

    pub(crate) fn waiting(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn waiting_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Skips the waiting requests of a key until `begin_attempt`.
    pub(crate) fn pass_over(&mut self, key: u64) {
        self.queue.pass_over(key);
    }

    pub(crate) fn begin_attempt(&mut self) {
        self.queue.begin_attempt();
    }

    pub(crate) fn prefilling(&self) -> u32 {
        self.prefilling
    }

    pub(crate) fn free_rows(&self) -> usize {
        self.free_rows.len()
    }

    pub(crate) fn live_states(&self) -> &LiveStates {
        &self.live_states
    }

    /// Whether a request that no longer runs still holds a live state, which it releases when its
    /// step in flight retires.
    pub(crate) fn releases_live_state(&self) -> bool {
        let holds = |entry: &&u32| self.live_states.is_needed_by(&self.slab[**entry]);
        self.live_states.taken() as usize > self.running.iter().filter(holds).count()
    }

    pub(crate) fn enqueue(&mut self, entry: u32) {
        self.queue.push(entry, &self.slab[entry]);
    }

    /// Moves a request from the queue to the running list and binds a free executor row, and a
    /// slot for a live state if it needs one. The caller has checked that both are free.
    pub(crate) fn start(&mut self, entry: u32) -> PoolRow {
        let row = self.free_rows.pop().unwrap_or_default();
        let sequence = &mut self.slab[entry];
        sequence.pool_row = Some(row);
        sequence.status = Status::Running;
        sequence.prefilling = true;
        self.prefilling += 1;
        self.live_states.take_for(sequence);
        self.queue.take(entry, &mut self.slab[entry]);
        self.running.push(entry);
        row
    }

    /// Moves a preempted request from the running list to the front of the queue.
    pub(crate) fn requeue(&mut self, entry: u32) {
        self.running.retain(|other| *other != entry);
        self.queue.push_front(entry, &self.slab[entry]);
    }

    /// Takes a request that ends off the queue, or marks the running list for a sweep and refunds
    /// the outputs that it did not use.
    pub(crate) fn withdraw(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        if sequence.status == Status::Waiting {
            self.queue.remove(entry, sequence);
        } else {
            self.queue.release(sequence);
            self.queue.refund(sequence.cold.params.key, sequence.outputs_left());
            self.unswept = true;
        }
    }

    /// Refunds tokens that were charged to the key of a request and will not be used.
    #[cfg(feature = "replay")]
    pub(crate) fn refund(&mut self, entry: u32, tokens: u32) {
        self.queue.refund(self.slab[entry].cold.params.key, tokens);
    }

    /// Charges the key of a request for tokens that it may use beyond those of its arrival.
    pub(crate) fn charge(&mut self, entry: u32, tokens: u32) {
        self.queue.charge(self.slab[entry].cold.params.key, tokens);
    }

    /// Frees the executor row and the live state of `entry`, unless it runs or a step in flight
    /// names it.
    pub(crate) fn release_row(&mut self, entry: u32) {
        let sequence = &mut self.slab[entry];
        if sequence.steps_in_flight == 0
            && sequence.status != Status::Running
            && let Some(row) = sequence.pool_row.take()
        {
            self.free_rows.push(row);
            self.live_states.release_for(sequence);
        }
    }

    /// Reaps a finished request once no step in flight names it.
    pub(crate) fn reap(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        if sequence.status == Status::Finished && sequence.steps_in_flight == 0 {
            self.slab.remove(entry);
        }
    }

    /// Removes finished requests from the running list. A reaped entry is vacant, hence not
    /// `Running`.
    pub(crate) fn sweep(&mut self) {
        if std::mem::take(&mut self.unswept) {
            let slab = &self.slab;
            self.running.retain(|entry| slab[*entry].status == Status::Running);
        }
    }

    /// Sets whether `entry` is in prefill and adjusts the count.
    pub(crate) fn set_prefilling(&mut self, entry: u32, prefilling: bool) {
        let was = std::mem::replace(&mut self.slab[entry].prefilling, prefilling);
        self.prefilling = self.prefilling + u32::from(prefilling) - u32::from(was);
    }

    /// The cache sequence of a sibling's leader, and the number of prompt tokens to fork from it.
    pub(crate) fn leader_of(&self, entry: u32) -> Option<(SeqId, u32)> {
        let sequence = &self.slab[entry];
        let leader = &self.slab[self.slab.find(sequence.cold.leader?)?];
        // A fork copies positions from the first one on. The last prompt token is always computed,
        // because its logits are needed.
        let tokens = leader.computed.min(sequence.prompt_len - 1);
        Some((leader.cache?, tokens)).filter(|_| tokens > 0 && leader.skipped + leader.dropped == 0)
    }

    /// Whether the leader of a sibling group has yet to finish their shared prompt.
    pub(crate) fn waits_for_leader(&self, entry: u32) -> bool {
        let leader = self.slab[entry].cold.leader.and_then(|leader| self.slab.find(leader));
        leader.map(|leader| &self.slab[leader]).is_some_and(|leader| match leader.status {
            Status::Running => leader.computed < leader.prompt_len && leader.dropped == 0,
            Status::Waiting => leader.cold.timings.admitted.is_none(),
            Status::Finished => false,
        })
    }

    /// Sets the drafts of the next decode, as many as the request allows and at most `max_drafts`.
    pub(crate) fn set_drafts(&mut self, entry: u32, drafts: &Proposal, max_drafts: u32) {
        self.drafted = true;
        let cold = &mut self.slab[entry].cold;
        let own = &mut cold.drafts;
        own.clear();
        let count = cold.params.draft_limit().map_or(max_drafts, |limit| limit.min(max_drafts));
        let count = (count as usize).min(drafts.tokens.len());
        own.tokens.extend_from_slice(&drafts.tokens[..count]);
        own.parents.extend(drafts.parents.iter().take(count));
        own.evidence.extend(drafts.evidence.iter().take(count));
        self.sync_drafts(entry);
    }

    /// Copies the number of drafts into the hot part of the sequence.
    pub(crate) fn sync_drafts(&mut self, entry: u32) {
        let sequence = &mut self.slab[entry];
        sequence.drafts = sequence.cold.drafts.tokens.len() as u32;
    }

    /// Whether any request has ever been given drafts.
    pub(crate) fn has_any_drafts(&self) -> bool {
        self.drafted
    }

    #[inline]
    pub(crate) fn has_drafts(&self, entry: u32) -> bool {
        self.drafted && self.slab[entry].drafts > 0
    }

    /// The next step carries slot copies of `entry`.
    pub(crate) fn copies_are_due(&mut self, entry: u32) {
        self.slab[entry].copies = SlotCopies::Due;
        self.copies_due = true;
    }

    /// All slot copies that are due go out with `step`.
    pub(crate) fn send_copies(&mut self, step: StepId) {
        if std::mem::take(&mut self.copies_due) {
            for entry in &self.running {
                let copies = &mut self.slab[*entry].copies;
                *copies = if *copies == SlotCopies::Due { SlotCopies::In(step) } else { *copies };
            }
        }
    }

    /// `step` will not run: its slot copies are due again.
    pub(crate) fn recall_copies(&mut self, step: StepId) {
        for i in 0..self.running.len() {
            if self.slab[self.running[i]].copies == SlotCopies::In(step) {
                self.copies_are_due(self.running[i]);
            }
        }
    }

    /// The next token of `entry` spills to the heap part of its `TailBuffered`.
    pub(crate) fn note_spill(&mut self, entry: u32) {
        self.spilling.push(entry);
    }

    /// Touches the memory to which tokens spill in one loop, so that the cache misses overlap.
    pub(crate) fn touch_spills(&mut self) {
        self.spilling.drain(..).for_each(|entry| self.slab[entry].tokens.prefetch_end());
    }
}

/// The table of sequences: `requests[entry]`, `requests.find(id)`.
impl Deref for Requests {
    type Target = Slab;
    #[inline]
    fn deref(&self) -> &Slab {
        &self.slab
    }
}

impl DerefMut for Requests {
    #[inline]
    fn deref_mut(&mut self) -> &mut Slab {
        &mut self.slab
    }
}
