//! Shared state of the scheduler: limits, KV cache, sequences, queue, running list, reserved slots,
//! step record and outbox, with the transitions of a request between them.
//!
//! Transitions: preempt (running → waiting, K/V released, recomputed later), finish (any →
//! finished, K/V published, retained for the session or released) and reap (`reap`: entry freed
//! once no step in flight names it).
//!
//! Invariants:
//!
//! - `free_rows` and the sequences together own each executor row exactly once. A row is freed only
//!   after the last step that names it.
//! - A finished sequence gets no further event.
//!
//! Checked by `check.rs`.

use crate::request::event::{Outbox, Summary};
use crate::request::finish::{Fault, Finish, Refusal};
use crate::request::sequence::Moves;
use crate::request::sequence::Status;
use crate::request::timings::Nanos;
use crate::scheduler::budget::{Budget, Commitment, StateSlots};
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::limits::Limits;
use crate::scheduler::queue::Queue;
use crate::scheduler::record::{Arrival, Deferral, StepRecord};
use crate::scheduler::retained_sessions::RetainedSessions;
use crate::scheduler::slab::Slab;
use kvasir_exec::{PoolRow, SequenceSpec};
use kvasir_kv::{Cache, ClaimRow, Hit, SeqId, StepId};
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

/// A scheduled row: a sequence that the policy put into the step under construction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledRow {
    pub(crate) entry: u32,
    pub(crate) seq: SeqId,
    /// Cached tokens that are recomputed; their writes go to the dummy slot.
    pub(crate) redirected: u32,
    /// Committed or in-flight tokens fed, without drafts.
    pub(crate) tokens: u32,
    pub(crate) drafts: u32,
    pub(crate) left_pad_blocks: u32,
    /// Its new slots, rolled back if the row is dropped.
    pub(crate) commitment: Commitment,
}

impl ScheduledRow {
    /// Condition of the decode fast path.
    pub(crate) fn is_one_token(&self) -> bool {
        self.tokens == 1 && self.redirected == 0 && self.drafts == 0
    }
}

/// Everything that a `Core` owns besides its policy.
pub(crate) struct World {
    pub(crate) limits: Limits,
    pub(crate) cache: Box<dyn Cache>,
    pub(crate) block: u32,
    pub(crate) budget: Budget,
    /// Length in tokens of the frozen shared prefix that every sequence starts with; whole blocks.
    pub(crate) base: u32,
    /// Prefix caching is on and the cache has a prefix index.
    pub(crate) has_prefix: bool,
    pub(crate) publish_at: PublishAt,
    pub(crate) slab: Slab,
    /// Retained K/V of sessions.
    pub(crate) retained: RetainedSessions,
    pub(crate) queue: Queue,
    /// Entries of running sequences, in order of admission.
    pub(crate) running: Vec<u32>,
    pub(crate) free_rows: Vec<PoolRow>,
    /// Recurrent-state slots of the sequences that hold an executor row.
    pub(crate) state_slots: StateSlots,
    /// Rows scheduled in the step under construction.
    pub(crate) rows: Vec<ScheduledRow>,
    pub(crate) scheduled_tokens: u32,
    /// Number of running sequences in prefill.
    pub(crate) prefilling: u32,
    pub(crate) record: StepRecord,
    /// Requests that arrived since the last `schedule` call.
    pub(crate) arrived: Vec<Arrival>,
    pub(crate) outbox: Outbox,
    /// Executor rows bound since the last `Core::take_binds`.
    pub(crate) binds: Vec<(PoolRow, SequenceSpec)>,
    pub(crate) claim_rows: Vec<ClaimRow>,
    /// Entries whose next token spills to the heap part of their `TailBuffered`. Their memory is
    /// touched in one batch, so that the cache misses overlap.
    pub(crate) due: Vec<u32>,
    /// Speculative decoding is on: a token must reach the host, and be drafted from, before the
    /// next feed.
    pub(crate) speculates: bool,
    /// At least one request has ever been given drafts.
    pub(crate) drafted: bool,
    /// Admissions are deferred by prefill coalescing.
    pub(crate) coalescing: bool,
    /// Steps in flight.
    pub(crate) in_flight: u32,
    /// The next step carries row moves of at least one sequence.
    pub(crate) moves_due: bool,
    /// Siblings can fork their leader's sequence (blocks of one slot). Used only if the cache has
    /// no prefix index.
    pub(crate) forks: bool,
    /// A sequence released slots since the last compaction.
    pub(crate) scattered: bool,
    /// `running` contains a request that has ended.
    pub(crate) unswept: bool,
    /// Upper bound on block-table entries of all running requests, for memory reservation.
    pub(crate) table_blocks: usize,
    /// The newest retired step.
    pub(crate) retired: StepId,
    /// Number of the current scheduling attempt.
    pub(crate) round: u64,
}

impl World {
    /// Slots, in whole blocks, of a sequence of `tokens`, excluding the frozen shared prefix.
    pub(crate) fn own_slots(&self, tokens: u32) -> u32 {
        self.budget.block().whole(tokens).saturating_sub(self.base)
    }

    /// Slots available now that are neither scheduled in this step nor reserved.
    pub(crate) fn unreserved(&self) -> u32 {
        self.budget.unreserved(self.cache.room())
    }

    /// Opens a cache sequence, evicting LRU retained sessions while the cache is at its sequence
    /// limit.
    pub(crate) fn open_sequence(&mut self) -> Result<SeqId, DeferReason> {
        loop {
            match self.cache.open() {
                Ok(seq) => return Ok(seq),
                Err(_) if self.evict_oldest() => {}
                Err(_) => return Err(DeferReason::CacheSequences),
            }
        }
    }

    /// Defers a sequence in this step, with a reason.
    pub(crate) fn defer(&mut self, entry: u32, reason: DeferReason) {
        let round = self.round;
        let sequence = &mut self.slab[entry];
        sequence.seen_in = round;
        self.record.held.push(Deferral { request: sequence.id, reason });
    }

    /// Sets whether `entry` is in prefill and adjusts the count.
    pub(crate) fn set_prefilling(&mut self, entry: u32, prefilling: bool) {
        let was = std::mem::replace(&mut self.slab[entry].prefilling, prefilling);
        self.prefilling = self.prefilling + u32::from(prefilling) - u32::from(was);
    }

    /// The leader's cache sequence and the number of prompt tokens to fork from it, for a sibling
    /// of parallel sampling.
    pub(crate) fn leader_of(&self, entry: u32) -> Option<(SeqId, u32)> {
        if self.has_prefix || !self.forks {
            return None;
        }
        let sequence = &self.slab[entry];
        let leader = &self.slab[self.slab.find(sequence.cold.leader?)?];
        // The last prompt token is always computed, because its logits are needed.
        let tokens = leader.computed.min(sequence.prompt_len - 1);
        Some((leader.cache?, tokens)).filter(|_| tokens > 0)
    }

    /// Attaches a cache hit to a fresh sequence: a fork of the leader, or a prefix-cache match of
    /// at most `hit.tokens`. Called even for an empty hit, so that the cache learns the prefix the
    /// sequence will publish.
    pub(crate) fn attach(&mut self, entry: u32, seq: SeqId, hit: Hit) -> Hit {
        let limit = hit.tokens;
        let leader = self.leader_of(entry).filter(|_| limit > 0);
        let sequence = &mut self.slab[entry];
        let attached = match leader {
            Some((leader, tokens)) => {
                let copied =
                    self.cache.sequences().and_then(|face| face.copy(leader, seq, 0..tokens.min(limit)));
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

    /// Publishes the computed whole blocks of `entry` to the prefix cache. Under
    /// `PublishAt::Milestones` only if `milestone`.
    pub(crate) fn publish(&mut self, entry: u32, milestone: bool) {
        let sequence = &mut self.slab[entry];
        let wanted = match self.publish_at {
            PublishAt::EveryBlock => true,
            PublishAt::Milestones => milestone,
        };
        let Some(seq) = sequence.cache else { return };
        if !self.has_prefix || !wanted || sequence.computed < sequence.published + self.block {
            return;
        }
        let whole = sequence.computed / self.block * self.block;
        let computed = sequence.computed.min(sequence.tokens.len());
        if let Ok(prefix) = self.cache.prefix()
            && prefix.publish(seq, sequence.tokens.gather(), computed).is_ok()
        {
            sequence.published = whole;
        }
    }

    /// Releases all K/V of `entry`. Slots named by steps in flight stay leased until those retire.
    pub(crate) fn release_cache(&mut self, entry: u32) {
        self.budget.reserve(&mut self.slab[entry], 0);
        self.set_prefilling(entry, false);
        let sequence = &mut self.slab[entry];
        sequence.claimed = 0;
        sequence.computed = 0;
        sequence.ahead = 0;
        sequence.published = 0;
        sequence.cold.hit = 0;
        sequence.moves = Moves::None;
        sequence.drafts.clear();
        sequence.cold.parents.clear();
        if let Some(seq) = sequence.cache.take() {
            self.scattered = true;
            // The id is open and owned by this sequence, so closing cannot fail.
            let closed = self.cache.close(seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.retained.note_change();
        }
        self.release_row(entry);
    }

    /// Frees the executor row and the state slot of `entry`, unless it runs or a step in flight
    /// names it.
    pub(crate) fn release_row(&mut self, entry: u32) {
        let sequence = &mut self.slab[entry];
        if sequence.steps_in_flight == 0
            && sequence.status != Status::Running
            && let Some(row) = sequence.pool_row.take()
        {
            self.free_rows.push(row);
            if sequence.cold.params.stateful {
                self.state_slots.give_back();
            }
        }
    }

    /// Preempts a running sequence by recomputation: publishes and releases its K/V and puts it at
    /// the front of the queue. Its tokens stay, those in flight included.
    pub(crate) fn preempt(&mut self, entry: u32) {
        self.publish(entry, true);
        let sequence = &mut self.slab[entry];
        sequence.status = Status::Waiting;
        sequence.cold.preemptions += 1;
        self.record.preempted.push(sequence.id);
        self.release_cache(entry);
        self.running.retain(|other| *other != entry);
        self.queue.push_front(entry, &self.slab[entry]);
    }

    /// Emits the final event of a request that was refused before it entered the queue, and frees
    /// its entry.
    pub(crate) fn refuse(&mut self, entry: u32, refusal: Refusal, now: Nanos) {
        let finish = Finish::Refused(refusal);
        let sequence = &mut self.slab[entry];
        sequence.cold.timings.finished = Some(now);
        self.outbox.push(sequence.id, sequence.tag, None, 0, &[], Some(finish));
        self.outbox.ended.push(Summary::of(sequence, finish));
        self.slab.remove(entry);
    }

    /// Ends a request: emits its outputs from `first` on with the finish reason, publishes or
    /// retains its K/V, and releases the rest. Takes it off the queue; the caller sweeps
    /// `World::running`.
    pub(crate) fn finish(
        &mut self,
        entry: u32,
        finish: Finish,
        step: Option<StepId>,
        first: u32,
        now: Nanos,
    ) {
        let sequence = &mut self.slab[entry];
        let was = sequence.status;
        if was == Status::Finished {
            return;
        }
        sequence.cold.finish = Some(finish);
        sequence.cold.timings.last_token = sequence.last_token;
        sequence.cold.timings.finished = Some(now);
        let new = sequence.tokens.since(sequence.prompt_len + first);
        self.outbox.push(sequence.id, sequence.tag, step, first, new, Some(finish));
        self.outbox.ended.push(Summary::of(sequence, finish));
        let (key, unused) = (sequence.cold.params.key, sequence.outputs_left());
        if was == Status::Waiting {
            self.queue.remove(entry, &self.slab[entry]);
        } else {
            self.queue.refund(key, unused);
            self.unswept = true;
        }
        if !matches!(finish, Finish::Failed(_)) {
            self.publish(entry, true);
            self.retain(entry);
        }
        self.report_retained(entry);
        self.slab[entry].status = Status::Finished;
        self.release_cache(entry);
        self.reap(entry);
    }

    /// Reaps a finished request once no step in flight names it.
    pub(crate) fn reap(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        if sequence.status == Status::Finished && sequence.steps_in_flight == 0 {
            self.slab.remove(entry);
        }
    }

    /// Sweeps if a running request has ended since the last sweep.
    pub(crate) fn sweep_if_marked(&mut self) {
        if self.unswept {
            self.sweep();
        }
    }

    /// Removes finished requests from the running list. A reaped entry is vacant, hence not
    /// `Running`.
    pub(crate) fn sweep(&mut self) {
        self.unswept = false;
        let slab = &self.slab;
        self.running.retain(|entry| slab[*entry].status == Status::Running);
    }

    /// Fails every request and evicts all retained sessions, because the executor is gone.
    pub(crate) fn fail_all(&mut self, fault: Fault, now: Nanos) {
        while self.evict_oldest() {}
        let all: Vec<u32> = self.slab.iter().map(|(entry, _)| entry).collect();
        for entry in all {
            let first = self.slab[entry].outputs_len();
            self.finish(entry, Finish::Failed(fault), None, first, now);
        }
        self.sweep();
    }
}
