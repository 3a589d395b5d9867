//! Dominant-resource fairness of client keys under `Order::Fair` (DRF; Ghodsi et al., 2011).
//!
//! The resources are KV slots and running sequences (at most `max_num_seqs` and the number of live
//! states). A key's *dominant share* is the larger of its two fractions. With k keys that have
//! requests, the *entitlement* of each is 1/k of both resources, and at least one running sequence.
//!
//! 1. Queue: requests within their key's entitlement first, then by dominant share, then by deficit
//!    round robin (`fair_queue.rs`).
//! 2. Preemption (`SchedulerState::preempt_for_share`): if the first request is within its key's
//!    entitlement and lacks a sequence or slots, the scheduler preempts requests of keys that
//!    exceed theirs: the key with the largest excess first, and its requests from the last admitted
//!    on.
//! 3. Prompt tokens of a step (`PrefillShares`): max-min fair among keys.
//!
//! One request at a time may be *exempt*: its key is entitled to all its slots, and the other keys to
//! equal parts of the rest. `fair_queue.rs` exempts a request that is larger than its key's
//! entitlement once other keys have overtaken it for long enough.
//!
//! Invariant: no cycle of preemptions. A preempted key exceeded its entitlement with the request that
//! it loses, and a request beyond its key's entitlement preempts none. Guarded by
//! `tests/fair_shares.rs`.

use crate::scheduler::queued::Queued;
use std::collections::BTreeMap;

/// Amounts of the shared resources: the use of a key, its entitlement, or the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Running sequences.
    pub(crate) sequences: u64,
    /// KV slots of running sequences at their maximum length, in whole blocks.
    pub(crate) slots: u64,
}

/// The use of all keys that have running requests.
#[derive(Debug, Default)]
pub(crate) struct KeyUse {
    total: Resources,
    of_key: BTreeMap<u64, Resources>,
    exempt: Option<Exempt>,
}

/// A request larger than its key's equal share to which its key is entitled.
#[derive(Clone, Copy, Debug)]
struct Exempt {
    key: u64,
    /// Arrival number.
    number: u64,
    slots: u64,
}

impl KeyUse {
    pub(crate) fn new(total: Resources) -> Self {
        Self { total, ..Self::default() }
    }

    /// Entitles a key to a request of any size, until `end_exemption`.
    pub(crate) fn exempt(&mut self, key: u64, queued: &Queued) {
        self.exempt = Some(Exempt { key, number: queued.number, slots: queued.slots });
    }

    pub(crate) fn end_exemption(&mut self) {
        self.exempt = None;
    }

    pub(crate) fn has_exempt(&self) -> bool {
        self.exempt.is_some()
    }

    /// Whether the request with this arrival number is exempt.
    pub(crate) fn is_exempt(&self, number: u64) -> bool {
        self.exempt.is_some_and(|exempt| exempt.number == number)
    }

    /// Charges a key for a request that begins to run.
    pub(crate) fn take(&mut self, key: u64, slots: u64) {
        let used = self.of_key.entry(key).or_default();
        used.sequences += 1;
        used.slots += slots;
    }

    /// Undoes `take` when the request ends or is preempted.
    pub(crate) fn release(&mut self, key: u64, slots: u64) {
        if let Some(used) = self.of_key.get_mut(&key) {
            used.sequences = used.sequences.saturating_sub(1);
            used.slots = used.slots.saturating_sub(slots);
            if used.sequences == 0 {
                self.of_key.remove(&key);
            }
        }
    }

    /// The resources that a key uses.
    pub(crate) fn of(&self, key: u64) -> Resources {
        self.of_key.get(&key).copied().unwrap_or_default()
    }

    /// Keys with running requests.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        self.of_key.keys().copied()
    }

    /// An equal share for each of `keys` keys.
    pub(crate) fn equal_share(&self, keys: usize) -> Resources {
        let keys = keys.max(1) as u64;
        Resources { sequences: (self.total.sequences / keys).max(1), slots: self.total.slots / keys }
    }

    /// The entitlement of a key, one of `keys`.
    pub(crate) fn entitlement(&self, key: u64, keys: usize) -> Resources {
        let equal = self.equal_share(keys);
        let Some(exempt) = self.exempt else { return equal };
        if exempt.key == key {
            return Resources { slots: equal.slots.max(exempt.slots), ..equal };
        }
        let others = keys.saturating_sub(1).max(1) as u64;
        Resources {
            sequences: (self.total.sequences.saturating_sub(1) / others).max(1),
            slots: self.total.slots.saturating_sub(exempt.slots) / others,
        }
    }

    /// Whether a key, one of `keys`, stays within its entitlement with one more request of this many
    /// slots.
    pub(crate) fn entitles(&self, key: u64, slots: u64, keys: usize) -> bool {
        let (used, most) = (self.of(key), self.entitlement(key, keys));
        used.sequences < most.sequences && used.slots + slots <= most.slots
    }

    /// A key's dominant share, in units of 2^-32.
    pub(crate) fn dominant_share(&self, key: u64) -> u64 {
        let fraction = |used: u64, total: u64| (used << 32) / total.max(1);
        let used = self.of(key);
        fraction(used.sequences, self.total.sequences).max(fraction(used.slots, self.total.slots))
    }
}

/// Max-min fair division of the step's prompt tokens among keys. Unlimited until `begin`.
#[derive(Debug, Default)]
pub(crate) struct PrefillShares {
    /// Most prompt tokens of one key in this step; `None`: no limit.
    level: Option<u32>,
    fed: BTreeMap<u64, u32>,
}

impl PrefillShares {
    /// Divides `budget` tokens among keys with these demands in prompt tokens, by water-filling:
    /// the largest `level` with `sum(min(demand, level)) <= budget`.
    pub(crate) fn begin(&mut self, budget: u32, demands: &mut [u64]) {
        demands.sort_unstable();
        let (mut left, mut keys) = (u64::from(budget), demands.len() as u64);
        for &demand in &*demands {
            let equal = left / keys;
            if demand > equal {
                // At least one token, so that each key progresses.
                self.level = Some(equal.max(1) as u32);
                return;
            }
            left -= demand;
            keys -= 1;
        }
        self.level = None;
    }

    /// Prompt tokens that a key may still be fed.
    pub(crate) fn left(&self, key: u64) -> u32 {
        let fed = self.fed.get(&key).copied().unwrap_or(0);
        self.level.map_or(u32::MAX, |level| level.saturating_sub(fed))
    }

    /// Whether the step feeds no prompt token of a key yet.
    pub(crate) fn is_unused(&self, key: u64) -> bool {
        !self.fed.contains_key(&key)
    }

    /// Counts prompt tokens that a key is fed.
    pub(crate) fn feed(&mut self, key: u64, tokens: u32) {
        if self.level.is_some() {
            *self.fed.entry(key).or_default() += tokens;
        }
    }

    /// Removes the limit, for the next step.
    pub(crate) fn clear(&mut self) {
        self.level = None;
        self.fed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entitlement_is_an_equal_part_and_at_least_one_sequence() {
        let mut used = KeyUse::new(Resources { sequences: 4, slots: 100 });
        assert_eq!(used.entitlement(1, 3), Resources { sequences: 1, slots: 33 });
        assert_eq!(used.entitlement(1, 9).sequences, 1);
        used.take(1, 20);
        assert!(used.entitles(1, 30, 2) && !used.entitles(1, 31, 2), "half of the slots");
        used.take(1, 20);
        assert!(!used.entitles(1, 1, 2), "half of the sequences");
        assert!(used.dominant_share(1) > used.dominant_share(2));
        used.release(1, 20);
        used.release(1, 20);
        assert_eq!((used.of(1), used.keys().count()), (Resources::default(), 0));
    }

    #[test]
    fn other_keys_share_what_an_exempt_request_leaves() {
        let mut used = KeyUse::new(Resources { sequences: 5, slots: 100 });
        used.exempt(7, &Queued { entry: 0, priority: 0, number: 3, cost: 0, tokens: 0, slots: 60 });
        assert_eq!(used.entitlement(7, 3), Resources { sequences: 1, slots: 60 });
        assert_eq!(used.entitlement(1, 3), Resources { sequences: 2, slots: 20 });
        assert!(used.is_exempt(3) && !used.is_exempt(4));
        used.end_exemption();
        assert_eq!(used.entitlement(1, 2), Resources { sequences: 2, slots: 50 });
    }

    #[test]
    fn prompt_tokens_are_shared_max_min_fair() {
        let level = |budget, demands: &[u64]| {
            let mut shares = PrefillShares::default();
            shares.begin(budget, &mut demands.to_vec());
            shares.left(1)
        };
        assert_eq!(level(100, &[500]), 100);
        assert_eq!(level(100, &[500, 10]), 90, "what a small demand leaves goes to the large one");
        assert_eq!(level(100, &[500, 30, 400, 5]), 32);
        assert_eq!(level(100, &[50, 50]), u32::MAX);
        assert_eq!(level(1, &[50, 50]), 1);
        let mut shares = PrefillShares::default();
        shares.begin(100, &mut [80, 80]);
        shares.feed(1, 30);
        assert_eq!((shares.left(1), shares.left(2)), (20, 50));
        shares.clear();
        assert_eq!(shares.left(1), u32::MAX);
    }
}
