//! The scheduler view: everything a policy can read (queue, running set, pool usage, budget, costs)
//! and do (admit, feed a prefill chunk, decode, defer, preempt, end for want of space).
//!
//! Admission control: `SchedulerView::admit` reserves slots up to `Admit::reserve_to` after
//! subtracting the prefix-cache hit or the session's retained K/V. It evicts other sessions'
//! retained K/V only if that makes the request fit. Reserved slots (`Budget`) are
//! subtracted from what others may claim, so a policy keeps no slot accounting of its own.
//!
//! Every refused verb returns a `DeferReason`. On error nothing is admitted, fed or reserved;
//! retained sessions may have been evicted while looking for slots.

use crate::request::finish::Finish;
use crate::request::ids::RequestId;
use crate::request::sequence::{Sequence, Status};
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::limits::{Costs, Limits};
use crate::scheduler::record::Admission;
use crate::scheduler::record::RectangleRecord;
use crate::scheduler::retained_sessions::Shortage;
use crate::scheduler::state::{ScheduledRow, World};
use kvasir_exec::SequenceSpec;
use kvasir_kv::{CacheError, Hit, PoolUsage, SeqId};

/// The scheduler view passed to a policy: its only way to read state and to act.
///
/// Sequences are named by their entry in the core's table, which names the same sequence while that
/// lives.
pub struct SchedulerView<'a> {
    pub(crate) world: &'a mut World,
    pub(crate) now: Nanos,
    pub(crate) costs: Costs,
}

/// Admission terms of a waiting sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admit {
    /// Length, in tokens, up to which KV slots must be available now and are reserved.
    pub reserve_to: u32,
    /// Most tokens of a prefix-cache hit to reuse.
    pub hit_limit: u32,
}

/// What a sequence is fed in this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// New tokens.
    pub tokens: u32,
    /// Cached tokens before them to recompute. Their K/V writes are redirected to the dummy slot.
    pub redirected: u32,
    /// Dummy blocks in front of the row's read (padding for static-shape executors).
    pub left_pad_blocks: u32,
    /// Tokens beyond this step for which slots are allocated now.
    pub ahead: u32,
}

/// The result of a successful admission test.
#[derive(Clone, Copy, Debug)]
struct Weighed {
    hit: Hit,
    /// Tokens of the hit that come from the session's retained K/V. If 0, the hit is a prefix-cache
    /// match or a fork of the sibling that computed the prompt.
    retained: u32,
    /// Length up to which slots are reserved, in whole blocks.
    upto: u32,
}

impl SchedulerView<'_> {
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
        &self.world.limits
    }
    /// KV slots per block.
    pub fn block_size(&self) -> u32 {
        self.world.block
    }
    /// KV pool usage.
    pub fn room(&self) -> PoolUsage {
        self.world.cache.room()
    }
    /// KV pool capacity in slots.
    pub fn capacity(&self) -> u32 {
        self.world.cache.capacity()
    }
    /// Slots available now that are neither scheduled in this step nor reserved for a running
    /// sequence.
    pub fn unreserved(&self) -> u32 {
        self.world.unreserved()
    }
    /// Slots, in whole blocks, that a sequence of `tokens` occupies, excluding a frozen shared
    /// prefix.
    pub fn own_slots(&self, tokens: u32) -> u32 {
        self.world.own_slots(tokens)
    }
    /// Steps in flight.
    pub fn steps_in_flight(&self) -> u32 {
        self.world.in_flight
    }
    /// The sequence at `entry`.
    pub fn sequence(&self, entry: u32) -> &Sequence {
        &self.world.slab[entry]
    }
    /// The entry of a running sequence.
    pub fn find_running(&self, id: RequestId) -> Option<u32> {
        let entry = self.world.slab.find(id)?;
        (self.world.slab[entry].status == Status::Running).then_some(entry)
    }
    /// The part of the step record that the `rectangular` policy fills in.
    pub fn rectangle(&mut self) -> &mut RectangleRecord {
        &mut self.world.record.rectangle
    }
    /// Number of running sequences.
    pub fn running(&self) -> usize {
        self.world.running.len()
    }
    /// Number of running sequences in prefill.
    pub fn prefilling(&self) -> usize {
        self.world.prefilling as usize
    }
    /// The `i`-th running sequence in order of admission.
    pub fn running_at(&self, i: usize) -> Option<u32> {
        self.world.running.get(i).copied()
    }
    /// Number of waiting sequences.
    pub fn waiting(&self) -> usize {
        self.world.queue.len()
    }
    /// The head of the waiting queue.
    pub fn next_waiting(&self) -> Option<u32> {
        self.world.queue.front()
    }
    /// Waiting sequences in queue order.
    pub fn waiting_in_order(&self) -> impl Iterator<Item = u32> {
        self.world.queue.iter()
    }
    /// Token budget left in the step (`max_num_batched_tokens`).
    pub fn token_budget(&self) -> u32 {
        self.world.limits.max_num_batched_tokens.saturating_sub(self.world.scheduled_tokens)
    }
    /// Tokens scheduled in the step so far.
    pub fn scheduled_tokens(&self) -> u32 {
        self.world.scheduled_tokens
    }
    /// Rows scheduled in the step so far.
    pub fn scheduled_rows(&self) -> usize {
        self.world.rows.len()
    }
    /// Whether a sequence is already scheduled or deferred in this call.
    pub fn is_settled(&self, entry: u32) -> bool {
        self.world.slab[entry].seen_in == self.world.round
    }

    /// The prefix-cache hit of a waiting sequence, or its session's retained K/V if that is at
    /// least as long. Cost: may hash or compare the whole prompt.
    pub fn lookup(&mut self, entry: u32) -> Hit {
        let found = self.find_prefix(entry);
        match self.world.retained_hit(&self.world.slab[entry]) {
            retained if retained > 0 && retained >= found.tokens => {
                Hit { tokens: retained, ..Hit::default() }
            }
            _ => found,
        }
    }

    /// The hit outside its own session: the sibling to fork, or the prefix cache.
    fn find_prefix(&mut self, entry: u32) -> Hit {
        if let Some((_, tokens)) = self.world.leader_of(entry) {
            return Hit { tokens: tokens.max(self.world.base), ..Hit::default() };
        }
        let sequence = &mut self.world.slab[entry];
        // A prompt that wants log-probabilities skips the prefix cache: cached tokens produce no
        // logits.
        let frozen = Hit { tokens: self.world.base, ..Hit::default() };
        if !self.world.limits.prefix_cache || sequence.wants_scores() {
            return frozen;
        }
        match self.world.cache.prefix() {
            Ok(prefix) => prefix.lookup(sequence.tokens.gather(), sequence.cold.params.salt),
            Err(_) => frozen,
        }
    }

    /// Defers a sequence in this step, with the reason for the record.
    pub fn defer(&mut self, entry: u32, reason: DeferReason) {
        self.world.defer(entry, reason);
    }
    /// Sets the reason for all running sequences that are neither scheduled nor deferred
    /// individually.
    pub fn defer_rest_running(&mut self, reason: DeferReason) {
        self.world.record.rest_running = Some(reason);
    }
    /// Sets the reason for all waiting sequences that are not deferred individually.
    pub fn defer_rest_waiting(&mut self, reason: DeferReason) {
        self.world.record.rest_waiting = Some(reason);
    }

    /// The reason why `entry` cannot be admitted regardless of KV slots, if there is one.
    fn closed_to(&self, entry: u32) -> Option<DeferReason> {
        let world = &*self.world;
        let sequence = &world.slab[entry];
        if sequence.in_flight > 0 || sequence.steps_in_flight > 0 {
            return Some(DeferReason::TokenInFlight);
        }
        if world.coalescing && !world.running.is_empty() {
            return Some(DeferReason::Coalesce);
        }
        if world.running.len() >= world.limits.max_num_seqs as usize {
            return Some(DeferReason::SequenceLimit);
        }
        if sequence.cold.leader.is_some_and(|leader| self.computes_prompt(leader)) {
            return Some(DeferReason::Sibling);
        }
        if sequence.cold.params.stateful && !world.state_slots.has_room() {
            return Some(DeferReason::NoStateSlot);
        }
        world.free_rows.is_empty().then_some(DeferReason::NoPoolRow)
    }

    /// Whether the leader of a sibling group has yet to finish their shared prompt.
    fn computes_prompt(&self, leader: RequestId) -> bool {
        let Some(entry) = self.world.slab.find(leader) else { return false };
        let leader = &self.world.slab[entry];
        leader.status == Status::Running && leader.computed < leader.prompt_len
            || leader.status == Status::Waiting && leader.cold.timings.admitted.is_none()
    }

    /// Admission test without admission: the cache hit that `admit` would use, or why it would
    /// fail. Changes nothing.
    pub fn admissible(&mut self, entry: u32, admit: Admit) -> Result<Hit, DeferReason> {
        self.weigh(entry, admit).map(|weighed| weighed.hit)
    }

    /// Admission test: whether the KV slots suffice, and which retained sequences must be evicted.
    /// Changes nothing but that victim list, which `World::evict_victims` evicts.
    fn weigh(&mut self, entry: u32, admit: Admit) -> Result<Weighed, DeferReason> {
        if let Some(reason) = self.closed_to(entry) {
            return Err(reason);
        }
        let weighed = self.weigh_hit(entry, admit);
        let world = &*self.world;
        // If only part of a hit is taken over, a cache may count too much of it as in use. With
        // nothing running, waiting would not help, so the request is tested without the hit.
        let waits_in_vain = world.running.is_empty() && world.in_flight == 0 && !world.retained.is_empty();
        if weighed.is_err() && waits_in_vain && admit.hit_limit > world.base {
            return self.weigh_hit(entry, Admit { hit_limit: world.base, ..admit });
        }
        weighed
    }

    /// The slot arithmetic of `weigh`: `needed = reserve_to - hit + idle`, in whole blocks, against
    /// unreserved slots above the watermark, then against LRU victims.
    fn weigh_hit(&mut self, entry: u32, admit: Admit) -> Result<Weighed, DeferReason> {
        let found = self.find_prefix(entry);
        let world = &mut *self.world;
        let retained = world.session_hit(entry, found.tokens, admit.hit_limit);
        let hit = match retained {
            0 => {
                let most = admit.hit_limit;
                Hit { tokens: found.tokens.min(most), idle: found.idle.min(most), ..found }
            }
            tokens => Hit { tokens, ..Hit::default() },
        };
        let upto = world.budget.block().whole(admit.reserve_to.max(world.slab[entry].len()));
        let needed = upto.saturating_sub(hit.tokens / world.block * world.block) + hit.idle;
        let room = world.cache.room();
        let low = u64::from(world.cache.capacity()) * u64::from(world.limits.watermark) / 1000;
        let low = if world.running.is_empty() { 0 } else { low as u32 };
        let weighed = Weighed { hit, retained, upto };
        let available = world.unreserved().saturating_sub(low);
        if needed <= available {
            world.clear_victims();
            return Ok(weighed);
        }
        if room.leased > 0 && needed <= world.unreserved() + room.leased {
            return Err(DeferReason::Lease { slots: room.leased });
        }
        let own = world.slab[entry].cold.params.session.map(|session| (session, retained));
        let slots = world.budget.missing(room, needed.saturating_add(low));
        if world.find_victims_for(entry, Shortage { slots, hit, own, leased_too: false }) {
            return Ok(weighed);
        }
        Err(match needed <= room.available() {
            true => DeferReason::Reserved { needed, available },
            false => DeferReason::NoRoom { needed, available: room.available() },
        })
    }

    /// Admits a waiting sequence: attaches its cache hit, binds an executor row and reserves slots
    /// up to `admit.reserve_to`.
    ///
    /// On error the sequence stays in the queue and nothing is reserved. Returns the hit that was
    /// attached.
    pub fn admit(&mut self, entry: u32, admit: Admit) -> Result<Hit, DeferReason> {
        let Weighed { hit, retained, upto } = self.weigh(entry, admit)?;
        let world = &mut *self.world;
        // Check everything that can fail before evicting.
        let Some(&row) = world.free_rows.last() else { return Err(DeferReason::NoPoolRow) };
        let opened = if retained == 0 { world.cache.open().ok() } else { None };
        if retained == 0 && opened.is_none() && world.retained.is_empty() {
            return Err(DeferReason::CacheSequences);
        }
        world.evict_victims();
        let (seq, attached) = match (world.take_retained(entry, retained), opened) {
            (Some((seq, tokens)), _) => (seq, Hit { tokens, ..Hit::default() }),
            (None, Some(seq)) => (seq, world.attach(entry, seq, hit)),
            (None, None) => {
                let seq = world.open_sequence()?;
                (seq, world.attach(entry, seq, hit))
            }
        };
        world.free_rows.pop();
        let sequence = &mut world.slab[entry];
        sequence.cache = Some(seq);
        sequence.pool_row = Some(row);
        if sequence.cold.params.stateful {
            world.state_slots.take();
        }
        sequence.status = Status::Running;
        sequence.computed = attached.tokens;
        sequence.claimed = attached.tokens;
        sequence.published = attached.tokens / world.block * world.block;
        sequence.cold.hit = attached.tokens;
        sequence.cold.reserve_to = admit.reserve_to;
        sequence.cold.leader = None;
        if sequence.cold.timings.admitted.is_none() {
            sequence.cold.timings.admitted = Some(self.now);
            sequence.cold.first_hit = attached.tokens;
        }
        sequence.prefilling = true;
        world.prefilling += 1;
        world.cache.expect(seq, sequence.longest());
        let more = sequence.longest().saturating_sub(sequence.len()) as usize;
        sequence.tokens.reserve(more.min(1 << 16));
        let spec = SequenceSpec {
            sampling: sequence.sampling,
            bias: sequence.cold.params.bias.clone(),
            prompt: sequence.prompt().to_vec(),
            output: sequence.outputs().to_vec(),
            suppressed_until_min: match sequence.cold.params.min_tokens {
                0 => Vec::new(),
                _ => sequence.cold.params.eos.iter().chain(&sequence.cold.params.stop_ids).copied().collect(),
            },
            min_tokens: sequence.cold.params.min_tokens,
            constraint: sequence.cold.params.constraint.clone(),
            final_len: sequence.longest(),
        };
        world.binds.push((row, spec));
        world.record.admitted.push(Admission { request: sequence.id, hit: attached.tokens });
        let held = world.budget.block().whole(attached.tokens);
        world.budget.reserve(&mut world.slab[entry], upto.saturating_sub(held));
        world.queue.take(entry, &world.slab[entry]);
        world.running.push(entry);
        Ok(attached)
    }

    /// Slots that `entry` may claim in this step: unreserved ones and its own reservation.
    fn room_for(&self, entry: u32) -> u32 {
        let world = &*self.world;
        world.unreserved() + world.slab[entry].reserved
    }

    /// Slots to claim for `tokens` more tokens of a running sequence; 0 if its last block has
    /// space.
    pub fn need(&self, entry: u32, tokens: u32) -> u32 {
        self.world.budget.growth(&self.world.slab[entry], tokens)
    }

    /// Most tokens of one prefill chunk. A chunk whose prompt log-probabilities are wanted needs a
    /// row of logits per token.
    pub fn at_once(&self, entry: u32) -> u32 {
        const SCORED: u32 = 128;
        if self.world.slab[entry].wants_scores() { SCORED } else { u32::MAX }
    }

    /// The reason why a running sequence cannot be fed now regardless of KV slots, if there is one.
    pub fn must_wait(&self, entry: u32) -> Option<DeferReason> {
        let sequence = &self.world.slab[entry];
        match sequence.in_flight > 0 {
            false => None,
            true if sequence.verifying || self.world.speculates => Some(DeferReason::Verifying),
            true if sequence.outputs_left() == 0 => Some(DeferReason::LastTokenInFlight),
            true => sequence.serial.then_some(DeferReason::TokenInFlight),
        }
    }

    /// Schedules a prefill chunk of `entry`: the next `feed.tokens` of what it has to be fed. On
    /// error the row is not scheduled.
    pub fn feed(&mut self, entry: u32, feed: Feed) -> Result<(), DeferReason> {
        self.schedule_row(entry, feed, 0)
    }

    /// Schedules a decode of `entry`: its newest token and, with speculative decoding, as many
    /// drafts as fit. On error the row is not scheduled. `left_pad_blocks` is padding for
    /// static-shape executors.
    #[inline]
    pub fn decode(&mut self, entry: u32, left_pad_blocks: u32) -> Result<(), DeferReason> {
        let feed = Feed { tokens: 1, left_pad_blocks, ..Feed::default() };
        if self.world.drafted && !self.world.slab[entry].drafts.is_empty() {
            let drafts = self.drafts_that_fit(entry);
            if drafts > 0 && self.schedule_row(entry, feed, drafts).is_ok() {
                return Ok(());
            }
        }
        self.schedule_row(entry, feed, 0)
    }

    /// Drafts require that the newest token is committed on the host and is the only one to feed.
    /// Their depth is bounded by the outputs left.
    fn drafts_that_fit(&self, entry: u32) -> u32 {
        let sequence = &self.world.slab[entry];
        let count = sequence.drafts.len() as u32;
        match sequence.in_flight == 0 && sequence.to_feed() == 1 {
            true if sequence.cold.parents.is_empty() => count
                .min(sequence.outputs_left().saturating_sub(1))
                .min(self.token_budget().saturating_sub(1)),
            true if sequence.outputs_left() > 1 => count,
            _ => 0,
        }
    }

    /// Schedules a row: checks the token budget, finds slots and consumes the sequence's
    /// reservation.
    #[inline]
    fn schedule_row(&mut self, entry: u32, feed: Feed, drafts: u32) -> Result<(), DeferReason> {
        if let Some(reason) = self.must_wait(entry) {
            return Err(reason);
        }
        let sequence = &self.world.slab[entry];
        let tokens = feed.tokens.min(sequence.to_feed());
        let fed = tokens + feed.redirected + drafts;
        if fed > self.token_budget() || tokens == 0 {
            return Err(DeferReason::TokenBudget);
        }
        let mut slots = self.world.budget.growth(sequence, tokens + drafts + feed.ahead);
        // Reserved slots are available by construction.
        if slots > sequence.reserved {
            self.find_room(entry, slots)?;
        }
        if feed.ahead > 0 {
            self.take_ahead(entry, tokens + feed.ahead)?;
            slots = self.need(entry, tokens + drafts);
        }
        let world = &mut *self.world;
        let sequence = &mut world.slab[entry];
        let redirected = feed.redirected.min(sequence.claimed);
        let seq = sequence.cache.unwrap_or(SeqId(u64::MAX));
        sequence.seen_in = world.round;
        let commitment = world.budget.commit(sequence, slots);
        world.scheduled_tokens += fed;
        world.rows.push(ScheduledRow {
            entry,
            seq,
            redirected,
            tokens,
            drafts,
            left_pad_blocks: feed.left_pad_blocks,
            commitment,
        });
        Ok(())
    }

    /// Ensures that `entry` may claim `slots`, evicting retained session K/V if that suffices.
    fn find_room(&mut self, entry: u32, slots: u32) -> Result<(), DeferReason> {
        let world = &mut *self.world;
        let beyond = slots.saturating_sub(world.slab[entry].reserved);
        let missing = world.budget.missing(world.cache.room(), beyond);
        let enough = |slots: u32, leased_too: bool| Shortage { slots, leased_too, ..Shortage::default() };
        if missing == 0 {
            return Ok(());
        }
        if world.find_victims(enough(missing, false)) {
            world.evict_victims();
            return Ok(());
        }
        // Waiting for the slots that a step in flight releases is cheaper than preempting.
        let leased = world.cache.room().leased;
        let beyond = missing.saturating_sub(leased);
        if beyond > 0 && world.find_victims(enough(beyond, true)) {
            world.evict_victims();
            return Err(DeferReason::Lease { slots: world.cache.room().leased });
        }
        match beyond {
            0 => Err(DeferReason::Lease { slots: leased }),
            _ => Err(DeferReason::NoRoom { needed: slots, available: self.room_for(entry) }),
        }
    }

    /// Allocates slots for `tokens` more tokens of a running sequence now, out of its reservation.
    fn take_ahead(&mut self, entry: u32, tokens: u32) -> Result<(), DeferReason> {
        let world = &mut *self.world;
        let sequence = &mut world.slab[entry];
        let Some(seq) = sequence.cache else { return Ok(()) };
        match world.cache.take_ahead(seq, sequence.claimed + tokens) {
            Ok(upto) => sequence.ahead = upto,
            Err(CacheError::Full { needed, available }) => {
                return Err(DeferReason::NoRoom { needed, available });
            }
            Err(_) => return Err(DeferReason::CacheSequences),
        }
        let upto = world.budget.block().whole(world.slab[entry].cold.reserve_to);
        let left = upto.saturating_sub(world.slab[entry].ahead).min(world.slab[entry].reserved);
        world.budget.reserve(&mut world.slab[entry], left);
        Ok(())
    }

    /// Preempts a running sequence by recomputation: it returns to the front of the queue. False if
    /// it is scheduled in this step already.
    pub fn preempt(&mut self, entry: u32) -> bool {
        let sequence = &self.world.slab[entry];
        if sequence.status != Status::Running || self.world.rows.iter().any(|row| row.entry == entry) {
            return false;
        }
        self.world.preempt(entry);
        self.world.defer(entry, DeferReason::Preempted);
        true
    }

    /// Ends a sequence that will never fit the KV cache, with `Finish::Capacity` and the outputs it
    /// has.
    pub fn finish_capacity(&mut self, entry: u32) {
        let first = self.world.slab[entry].outputs_len();
        self.world.finish(entry, Finish::Capacity, None, first, self.now);
        self.world.sweep();
    }
}
