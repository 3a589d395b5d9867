//! Shared state of the scheduler: limits, KV cache, sequences, queue, running list, reserved slots,
//! step record and outbox, with the transitions of a request between them.
//!
//! Transitions: preempt (running → waiting, K/V released, recomputed later), finish (any →
//! finished, K/V published, retained for the session or released) and reap (`bury`: entry freed
//! once no step in flight names it).
//!
//! Invariants:
//!
//! - `promised` is the sum over sequences of slots reserved and not yet claimed; no other sequence
//!   may claim them.
//! - `free_rows` and the sequences together own each executor row exactly once. A row is freed only
//!   after the last step that names it.
//! - A finished sequence gets no further event.
//!
//! Checked by `check.rs`.

use crate::sequence::Moves;
use crate::{
    Arrival, Fault, Finish, Held, Limits, Nanos, Outbox, PublishAt, Reason, Refusal, StateSlots, Status,
    StepRecord, Summary, kept::KeptSessions, queue::Queue, slab::Slab,
};
use kvasir_exec::{PoolRow, SequenceSpec};
use kvasir_kv::blocks::BlockSize;
use kvasir_kv::{Cache, ClaimRow, Hit, SeqId, StepId};

/// A row that the policy has put into the step being made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) entry: u32,
    pub(crate) seq: SeqId,
    /// Tokens fed again although they are there.
    pub(crate) redirected: u32,
    /// Known tokens fed, drafts not counted.
    pub(crate) tokens: u32,
    pub(crate) drafts: u32,
    pub(crate) left_pad_blocks: u32,
    pub(crate) slots: u32,
    /// What the sequence was promised before.
    pub(crate) promised: u32,
}

impl Pick {
    /// Whether it feeds one token and nothing else.
    pub(crate) fn is_one_token(&self) -> bool {
        self.tokens == 1 && self.redirected == 0 && self.drafts == 0
    }
}

/// Everything that a core owns beside its policy.
pub(crate) struct World {
    pub(crate) limits: Limits,
    pub(crate) cache: Box<dyn Cache>,
    pub(crate) block: u32,
    pub(crate) size: BlockSize,
    /// Tokens that every sequence begins with, which lie in a frozen prefix: whole blocks.
    pub(crate) base: u32,
    pub(crate) has_prefix: bool,
    pub(crate) publish_at: PublishAt,
    pub(crate) slab: Slab,
    /// What sessions left in the cache.
    pub(crate) kept: KeptSessions,
    pub(crate) queue: Queue,
    /// In order of admission.
    pub(crate) running: Vec<u32>,
    pub(crate) free_rows: Vec<PoolRow>,
    /// Of all who have a place in the token pool and keep state.
    pub(crate) state_slots: StateSlots,
    pub(crate) picks: Vec<Pick>,
    pub(crate) picked_tokens: u32,
    /// Slots that `picks` will claim.
    pub(crate) picked_slots: u32,
    /// Running sequences whose prompt is under way.
    pub(crate) prefilling: u32,
    /// Slots promised to running sequences and not claimed.
    pub(crate) promised: u32,
    pub(crate) record: StepRecord,
    /// Requests that came since the last call of `schedule`.
    pub(crate) arrived: Vec<Arrival>,
    pub(crate) outbox: Outbox,
    pub(crate) binds: Vec<(PoolRow, SequenceSpec)>,
    pub(crate) claim_rows: Vec<ClaimRow>,
    /// Those whose next token goes to the long part of their list.
    pub(crate) due: Vec<u32>,
    /// Drafts are made once a token is seen, so nothing is fed before.
    pub(crate) speculates: bool,
    /// Somebody was given drafts.
    pub(crate) drafted: bool,
    /// Newcomers wait for the other replicas.
    pub(crate) coalescing: bool,
    /// Steps scheduled and not come back.
    pub(crate) in_flight: u32,
    /// Row moves of somebody go out with the next step.
    pub(crate) moves_due: bool,
    /// Whether siblings can share their prompt by a fork, where the cache finds nothing by content.
    pub(crate) forks: bool,
    /// Somebody gave cells back since the cache was compacted last.
    pub(crate) scattered: bool,
    /// A running request has ended and is still listed.
    pub(crate) unswept: bool,
    /// Blocks that the tables of all running requests may come to.
    pub(crate) table_blocks: usize,
    /// The newest step whose lease has ended.
    pub(crate) retired: StepId,
    /// Number of this `schedule` call.
    pub(crate) round: u64,
}

impl World {
    /// Slots of whole blocks that `tokens` take.
    pub(crate) fn whole_blocks(&self, tokens: u32) -> u32 {
        self.size.whole(tokens)
    }

    /// Slots of whole blocks that a sequence of `tokens` takes, those in a frozen prefix not counted.
    pub(crate) fn own_slots(&self, tokens: u32) -> u32 {
        self.whole_blocks(tokens).saturating_sub(self.base)
    }

    /// Slots that can be had now and are neither picked for this step nor promised to anybody.
    pub(crate) fn unpromised(&self) -> u32 {
        self.cache.room().available().saturating_sub(self.picked_slots).saturating_sub(self.promised)
    }

    /// Slots that are missing for a claim of `slots` that are not reserved.
    pub(crate) fn shortage(&self, slots: u32) -> u32 {
        let taken = u64::from(self.picked_slots) + u64::from(self.promised) + u64::from(slots);
        let missing = taken.saturating_sub(u64::from(self.cache.room().available()));
        missing.min(u64::from(u32::MAX)) as u32
    }

    /// Begins a sequence of the cache; evicts retained ones if it can have no more sequences.
    pub(crate) fn open_sequence(&mut self) -> Result<SeqId, Reason> {
        loop {
            match self.cache.open() {
                Ok(seq) => return Ok(seq),
                Err(_) if self.evict_oldest() => {}
                Err(_) => return Err(Reason::CacheSequences),
            }
        }
    }

    pub(crate) fn hold(&mut self, entry: u32, reason: Reason) {
        let round = self.round;
        let sequence = &mut self.slab[entry];
        sequence.seen_in = round;
        self.record.held.push(Held { request: sequence.id, reason });
    }

    /// Slots that `entry` still has a promise of; adjusts the sum.
    pub(crate) fn set_promise(&mut self, entry: u32, slots: u32) {
        let sequence = &mut self.slab[entry];
        self.promised = self.promised + slots - sequence.promised;
        sequence.promised = slots;
    }

    /// Notes whether the prompt of `entry` is under way; adjusts how many are.
    pub(crate) fn set_prefilling(&mut self, entry: u32, prefilling: bool) {
        let was = std::mem::replace(&mut self.slab[entry].prefilling, prefilling);
        self.prefilling = self.prefilling + u32::from(prefilling) - u32::from(was);
    }

    /// Sets the promise to what is missing between what is claimed and what was reserved at admission.
    pub(crate) fn renew_promise(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        let have = self.whole_blocks(sequence.claimed.max(sequence.ahead));
        let upto = self.whole_blocks(sequence.rest.reserve_to);
        self.set_promise(entry, upto.saturating_sub(have));
    }

    /// The cache's sequence of a sibling's leader, and how much of the prompt it has, where that is to be shared by a fork.
    pub(crate) fn leader_of(&self, entry: u32) -> Option<(SeqId, u32)> {
        if self.has_prefix || !self.forks {
            return None;
        }
        let sequence = &self.slab[entry];
        let leader = &self.slab[self.slab.find(sequence.rest.leader?)?];
        // The last token is always computed, because its logits are wanted.
        let tokens = leader.computed.min(sequence.prompt_len - 1);
        Some((leader.cache?, tokens)).filter(|_| tokens > 0)
    }

    /// Gives a fresh sequence at most what it hit of what others left or have. Without any it still learns whose prefix it will be.
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
                let salt = sequence.rest.params.salt;
                let tokens = sequence.tokens.gather();
                self.cache.prefix().and_then(|prefix| prefix.attach(seq, tokens, salt, limit, hit.lookup))
            }
        };
        attached.unwrap_or(Hit { tokens: self.base, ..Hit::default() })
    }

    /// Makes what `entry` has computed findable, as far as the policy wants it now.
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

    /// Gives back everything that `entry` holds in the cache; what steps in flight name stays until they are done.
    pub(crate) fn release_cache(&mut self, entry: u32) {
        self.set_promise(entry, 0);
        self.set_prefilling(entry, false);
        let sequence = &mut self.slab[entry];
        sequence.claimed = 0;
        sequence.computed = 0;
        sequence.ahead = 0;
        sequence.published = 0;
        sequence.rest.hit = 0;
        sequence.moves = Moves::None;
        sequence.drafts.clear();
        sequence.rest.parents.clear();
        if let Some(seq) = sequence.cache.take() {
            self.scattered = true;
            // The id is ours and open, so the cache has nothing to refuse.
            let closed = self.cache.close(seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.kept.note_change();
        }
        self.release_row(entry);
    }

    /// Gives the place in the token pool, and that of its state, back once no step in flight names it.
    pub(crate) fn release_row(&mut self, entry: u32) {
        let sequence = &mut self.slab[entry];
        if sequence.steps_in_flight == 0
            && sequence.status != Status::Running
            && let Some(row) = sequence.pool_row.take()
        {
            self.free_rows.push(row);
            if sequence.rest.params.stateful {
                self.state_slots.give_back();
            }
        }
    }

    /// Sends a running sequence back to the front of the queue. Its tokens stay, those in flight included.
    pub(crate) fn preempt(&mut self, entry: u32) {
        self.publish(entry, true);
        let sequence = &mut self.slab[entry];
        sequence.status = Status::Waiting;
        sequence.rest.preemptions += 1;
        self.record.preempted.push(sequence.id);
        self.release_cache(entry);
        self.running.retain(|other| *other != entry);
        self.queue.push_front(entry, &self.slab[entry]);
    }

    /// Tells the client of a request that never entered the queue.
    pub(crate) fn refuse(&mut self, entry: u32, refusal: Refusal, now: Nanos) {
        let finish = Finish::Refused(refusal);
        let sequence = &mut self.slab[entry];
        sequence.rest.timings.finished = Some(now);
        self.outbox.push(sequence.id, sequence.tag, None, 0, &[], Some(finish));
        self.outbox.ended.push(Summary::of(sequence, finish));
        self.slab.remove(entry);
    }

    /// Ends a request. Its outputs from `first` on go out with the event. Takes it out of the queue; the caller sweeps
    /// [`World::running`].
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
        sequence.rest.finish = Some(finish);
        sequence.rest.timings.last_token = sequence.last_token;
        sequence.rest.timings.finished = Some(now);
        let new = sequence.tokens.since(sequence.prompt_len + first);
        self.outbox.push(sequence.id, sequence.tag, step, first, new, Some(finish));
        self.outbox.ended.push(Summary::of(sequence, finish));
        let (key, unused) = (sequence.rest.params.key, sequence.outputs_left());
        if was == Status::Waiting {
            self.queue.remove(entry, &self.slab[entry]);
        } else {
            self.queue.refund(key, unused);
            self.unswept = true;
        }
        if !matches!(finish, Finish::Failed(_)) {
            self.publish(entry, true);
            self.keep(entry);
        }
        self.tell_kept(entry);
        self.slab[entry].status = Status::Finished;
        self.release_cache(entry);
        self.bury(entry);
    }

    /// Forgets an ended request once no step in flight names it.
    pub(crate) fn bury(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        if sequence.status == Status::Finished && sequence.steps_in_flight == 0 {
            self.slab.remove(entry);
        }
    }

    /// Sweeps if a running request has ended since the last time.
    pub(crate) fn sweep_if_marked(&mut self) {
        if self.unswept {
            self.sweep();
        }
    }

    /// Takes everybody who has ended off the running list. Entries of the buried are vacant, not running.
    pub(crate) fn sweep(&mut self) {
        self.unswept = false;
        let slab = &self.slab;
        self.running.retain(|entry| slab[*entry].status == Status::Running);
    }

    /// Ends everybody because the executor is gone, and what sessions left with it.
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
