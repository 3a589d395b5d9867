//! Preemption for fair shares of client keys (`fair_share.rs`): preempts requests of keys that
//! exceed their entitlement to admit a request of a key that is within its own.
//!
//! Guarded by `tests/fair_shares.rs`.

use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::fair_share::Resources;
use crate::scheduler::kv_manager::admission::AdmissionTerms;
use crate::scheduler::state::SchedulerState;

/// Waiting requests per key whose cached prefixes are looked up when a step's prompt tokens are
/// divided among keys. A lookup reads the whole prompt; prompts of later requests count as
/// uncached.
const MAX_LOOKUPS_PER_KEY: usize = 8;

/// The resource that the first request of the queue lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    Sequence,
    /// Missing KV slots.
    Slots(u32),
}

impl SchedulerState {
    /// If the first waiting request is within its key's entitlement and lacks a sequence or slots,
    /// preempts as many requests of keys that exceed theirs as it needs, and drops the rows
    /// scheduled so far. True if it preempted any; the caller must then schedule the step again.
    pub(crate) fn preempt_for_share(&mut self, reserve_to: impl Fn(&Self, u32) -> u32) -> bool {
        if !self.preempts_for_shares {
            return false;
        }
        let Some(entry) = self.requests.waiting_mut().entitled() else { return false };
        let terms = AdmissionTerms { reserve_to: reserve_to(self, entry), hit_limit: u32::MAX };
        let shortage = match self.admissible(entry, terms) {
            Err(DeferReason::SequenceLimit) => Shortage::Sequence,
            // A preempted request may keep its live state until its step in flight retires.
            Err(DeferReason::NoStateSlot) if !self.requests.releases_live_state() => Shortage::Sequence,
            Err(DeferReason::NoSlots { needed, .. } | DeferReason::Reserved { needed, .. }) => {
                let missing = self.kv.budget().missing(self.kv.cache().usage(), needed);
                Shortage::Slots(missing.max(1))
            }
            _ => return false,
        };
        let victims = self.victims_of(shortage);
        if victims.is_empty() {
            return false;
        }
        self.drop_rows();
        victims.into_iter().for_each(|victim| self.preempt(victim));
        true
    }

    /// Requests to preempt for a shortage: repeatedly, of the key with the largest excess over its
    /// entitlement, the request admitted last. Empty if they would not suffice.
    fn victims_of(&self, shortage: Shortage) -> Vec<u32> {
        let queue = self.requests.waiting().fair();
        let mut used: Vec<(u64, Resources)> =
            queue.used().keys().map(|key| (key, queue.used().of(key))).collect();
        let excess = |(key, used): &(u64, Resources)| {
            let most = queue.used().entitlement(*key, queue.keys());
            match shortage {
                Shortage::Sequence => used.sequences.saturating_sub(most.sequences),
                Shortage::Slots(_) => used.slots.saturating_sub(most.slots),
            }
        };
        let mut missing = match shortage {
            Shortage::Sequence => 1,
            Shortage::Slots(slots) => u64::from(slots),
        };
        let mut victims = Vec::new();
        while missing > 0 {
            let largest = used.iter_mut().filter(|used| excess(used) > 0);
            let Some((key, of_key)) = largest.max_by_key(|used| excess(used)) else { return Vec::new() };
            let is_of_key = |entry: &&u32| {
                let sequence = &self.requests[**entry];
                let is_exempt = queue.used().is_exempt(sequence.number());
                sequence.cold.params.key == *key && !is_exempt && !victims.contains(*entry)
            };
            let Some(&victim) = self.requests.running().iter().rev().find(is_of_key) else {
                return Vec::new();
            };
            victims.push(victim);
            let sequence = &self.requests[victim];
            let held = self.kv.budget().block().whole(sequence.next_position()) + sequence.reserved;
            missing = match shortage {
                Shortage::Sequence => 0,
                Shortage::Slots(_) => missing.saturating_sub(held.into()),
            };
            of_key.sequences -= 1;
            of_key.slots = of_key.slots.saturating_sub(sequence.cold.charged_slots);
        }
        victims
    }

    /// Drops all rows of the step under construction.
    fn drop_rows(&mut self) {
        while let Some(row) = self.schedule.pop() {
            self.kv.budget_mut().roll_back(&mut self.requests[row.entry], row.commitment);
        }
    }

    /// Index of the running request to preempt for slots, among indices from `first` on: the
    /// request admitted last; under `Order::Fair`, the last of the key with the largest dominant
    /// share, and an exempt request only if there is no other.
    pub(crate) fn preemption_victim(&self, first: usize) -> Option<usize> {
        let (queue, running) = (self.requests.waiting(), self.requests.running());
        let used = queue.fair().used();
        let share = |entry: u32| {
            let sequence = &self.requests[entry];
            (!used.is_exempt(sequence.number()), used.dominant_share(sequence.cold.params.key))
        };
        let candidates = running.iter().enumerate().skip(first);
        if queue.is_fair() {
            candidates.max_by_key(|(_, entry)| share(**entry)).map(|(i, _)| i)
        } else {
            candidates.last().map(|(i, _)| i)
        }
    }

    /// Divides the step's prompt tokens among keys, under `Order::Fair` and if several keys have
    /// prompts to feed. `budget` maps the largest number of tokens already fed to one of these
    /// prompts to the step's prompt tokens. Returns that budget, or `None` if it is not divided.
    pub(crate) fn share_prefill(&mut self, budget: impl FnOnce(u32) -> u32) -> Option<u32> {
        self.prefill_shares.clear();
        let queue = self.requests.waiting().fair();
        if !self.preempts_for_shares || queue.keys() < 2 {
            return None;
        }
        let waiting: Vec<_> = queue.entitled_tokens(MAX_LOOKUPS_PER_KEY).collect();
        let mut demands: Vec<(u64, u64)> = waiting.iter().map(|(key, _, tokens)| (*key, *tokens)).collect();
        let mut deepest = 0;
        for entry in self.requests.running() {
            let sequence = &self.requests[*entry];
            if sequence.is_prefilling() {
                demands.push((sequence.cold.params.key, sequence.to_feed().into()));
                deepest = deepest.max(sequence.claimed);
            }
        }
        let mut by_key = sum_by_key(demands.clone());
        if by_key.len() < 2 {
            return None;
        }
        let budget = budget(deepest);
        if by_key.iter().map(|(_, tokens)| tokens).sum::<u64>() > u64::from(budget) {
            // Cached prefixes need no prompt tokens. Lookups are costly: only if the budget is
            // exceeded.
            for ((_, entry, _), (_, demand)) in waiting.iter().zip(&mut demands) {
                if let Some(entry) = *entry {
                    let fork = self.fork_of(entry);
                    let hit = self.kv.lookup(&mut self.requests[entry], fork);
                    *demand = demand.saturating_sub(hit.tokens.into()).max(1);
                }
            }
            by_key = sum_by_key(demands);
        }
        let mut demands: Vec<u64> = by_key.into_iter().map(|(_, tokens)| tokens).collect();
        self.prefill_shares.begin(budget, &mut demands);
        Some(budget)
    }

    /// Whether the step must decode before more prompts run: the previous step held prompts only,
    /// and several keys have requests. This bounds the delay of a key's decodes by prompts of
    /// others to one step.
    pub(crate) fn decodes_are_due(&self) -> bool {
        self.preempts_for_shares && self.is_after_prefill && self.requests.waiting().fair().keys() > 1
    }
}

/// The sum of the amounts of each key.
fn sum_by_key(mut amounts: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    amounts.sort_unstable();
    amounts.dedup_by(|(key, amount), (first, sum)| {
        let is_same = key == first;
        *sum += if is_same { *amount } else { 0 };
        is_same
    });
    amounts
}
