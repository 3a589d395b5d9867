//! Preemption for fair shares of client keys (`fair_share.rs`): preempts requests of keys that
//! exceed their entitlement to admit a request of a key that is within its own.
//!
//! Guarded by `tests/fair_shares.rs`.

use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::fair_share::Resources;
use crate::scheduler::kv_manager::AdmissionTerms;
use crate::scheduler::state::SchedulerState;

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
        let Some(entry) = self.requests.waiting().entitled() else { return false };
        let terms = AdmissionTerms { reserve_to: reserve_to(self, entry), hit_limit: u32::MAX };
        let shortage = match self.admissible(entry, terms) {
            Err(DeferReason::SequenceLimit) => Shortage::Sequence,
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
        let queue = self.requests.waiting();
        let most = queue.used().entitlement(queue.keys());
        let mut used: Vec<(u64, Resources)> =
            queue.used().keys().map(|key| (key, queue.used().of(key))).collect();
        let excess = |used: &Resources| match shortage {
            Shortage::Sequence => used.sequences.saturating_sub(most.sequences),
            Shortage::Slots(_) => used.slots.saturating_sub(most.slots),
        };
        let mut missing = match shortage {
            Shortage::Sequence => 1,
            Shortage::Slots(slots) => u64::from(slots),
        };
        let mut victims = Vec::new();
        while missing > 0 {
            let largest = used.iter_mut().filter(|(_, used)| excess(used) > 0);
            let Some((key, of_key)) = largest.max_by_key(|(_, used)| excess(used)) else { return Vec::new() };
            let is_of_key =
                |entry: &&u32| self.requests[**entry].cold.params.key == *key && !victims.contains(*entry);
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
    /// share.
    pub(crate) fn preemption_victim(&self, first: usize) -> Option<usize> {
        let (queue, running) = (self.requests.waiting(), self.requests.running());
        let share = |entry: u32| queue.used().dominant_share(self.requests[entry].cold.params.key);
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
        let queue = self.requests.waiting();
        if !self.preempts_for_shares || queue.keys() < 2 {
            return None;
        }
        let mut demands: Vec<(u64, u64)> = queue.entitled_tokens().collect();
        let mut deepest = 0;
        for entry in self.requests.running() {
            let sequence = &self.requests[*entry];
            if sequence.is_prefilling() {
                demands.push((sequence.cold.params.key, sequence.to_feed().into()));
                deepest = deepest.max(sequence.claimed);
            }
        }
        demands.sort_unstable();
        demands.dedup_by(|(key, tokens), (first, sum)| {
            let is_same = key == first;
            *sum += if is_same { *tokens } else { 0 };
            is_same
        });
        if demands.len() < 2 {
            return None;
        }
        let budget = budget(deepest);
        let mut demands: Vec<u64> = demands.into_iter().map(|(_, tokens)| tokens).collect();
        self.prefill_shares.begin(budget, &mut demands);
        Some(budget)
    }

    /// Whether the step must decode before more prompts run: the previous step held prompts only,
    /// and several keys have requests. This bounds the delay of a key's decodes by prompts of
    /// others to one step.
    pub(crate) fn decodes_are_due(&self) -> bool {
        self.preempts_for_shares && self.is_after_prefill && self.requests.waiting().keys() > 1
    }
}
