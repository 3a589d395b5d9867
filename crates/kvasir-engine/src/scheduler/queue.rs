//! The waiting queue and its orders: FCFS, priority, and fair queueing over client keys
//! (`fair_queue.rs`).
//!
//! A preempted request returns to the front of its priority class or key.
//!
//! Priority with ageing: of every [`AGEING_INTERVAL`] admissions one goes to the request that arrived
//! first, whatever its priority. So no priority starves, and a flood of old requests delays urgent ones
//! by that share only.

use crate::request::sequence::Sequence;
use crate::scheduler::fair_queue::FairQueue;
use crate::scheduler::fair_share::{KeyUse, Resources};
use crate::scheduler::limits::Limits;
use crate::scheduler::queued::Queued;
use kvasir_kv::CacheShape;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, fmt};

/// `--order`: the order in which waiting requests are considered for admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Higher priority first, then by arrival; every sixteenth admission goes to the first arrival.
    Priority,
    /// Each client key has a fair share of running sequences, KV slots and prompt tokens of a step.
    /// Deficit round robin over tokens among keys with equal dominant shares.
    Fair,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fcfs => "fcfs",
            Self::Priority => "priority",
            Self::Fair => "fair",
        })
    }
}

/// Admissions under `Priority` of which one goes to the first arrival.
const AGEING_INTERVAL: u64 = 16;

/// Waiting requests in admission order. Preempted requests go to the front.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    order: Order,
    /// All requests under `Fcfs` and `Priority`.
    fifo: VecDeque<Queued>,
    /// The waiting requests under `Fair`, and the resources that running ones use.
    fair: FairQueue,
    /// Block size of the cache in slots.
    block: u32,
    /// Size of the cache in slots.
    capacity: u32,
    /// Admissions so far.
    admissions: u64,
    len: usize,
}

impl Queue {
    pub(crate) fn new(order: Order, limits: &Limits, shape: &CacheShape) -> Self {
        let live_states = shape.states.map_or(u32::MAX, |states| states.live);
        let sequences = limits.max_num_seqs.min(live_states);
        let total = Resources { sequences: sequences.into(), slots: shape.capacity.into() };
        Self {
            order,
            fair: FairQueue::new(KeyUse::new(total)),
            block: shape.block_size.max(1),
            capacity: shape.capacity,
            ..Self::default()
        }
    }

    fn queued(&self, entry: u32, sequence: &Sequence) -> Queued {
        let cost = i64::from(sequence.len()) + i64::from(sequence.outputs_left());
        Queued {
            entry,
            priority: sequence.params().priority.into(),
            number: sequence.number(),
            cost,
            tokens: sequence.len().into(),
            slots: u64::from(sequence.longest().min(self.capacity)).next_multiple_of(self.block.into()),
        }
    }

    pub(crate) fn is_fair(&self) -> bool {
        self.order == Order::Fair
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Enqueues a new request. O(n) under `Priority`.
    pub(crate) fn push(&mut self, entry: u32, sequence: &Sequence) {
        let queued = self.queued(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.fifo.push_back(queued),
            Order::Priority => {
                let at = self.fifo.partition_point(|other| other.priority >= queued.priority);
                self.fifo.insert(at, queued);
            }
            Order::Fair => self.fair.push(sequence.params().key, queued, false),
        }
    }

    /// Enqueues a preempted request ahead of its priority class or key, and refunds its cost.
    pub(crate) fn push_front(&mut self, entry: u32, sequence: &Sequence) {
        let queued = self.queued(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.fifo.push_front(queued),
            Order::Priority => {
                let at = self.fifo.partition_point(|other| other.priority > queued.priority);
                self.fifo.insert(at, queued);
            }
            Order::Fair => {
                self.fair.release(sequence, false);
                self.fair.push(sequence.params().key, queued, true);
            }
        }
    }

    /// The request to consider next.
    pub(crate) fn front(&mut self) -> Option<u32> {
        match self.order {
            Order::Fair => self.fair.front(),
            Order::Fcfs | Order::Priority => self.fifo.front().map(|queued| queued.entry),
        }
    }

    /// The queue of `Order::Fair`; empty under other orders.
    pub(crate) fn fair(&self) -> &FairQueue {
        &self.fair
    }

    /// The request that `Fair` considers first, if it is within its key's entitlement. Ignores
    /// skipped keys.
    pub(crate) fn entitled(&mut self) -> Option<u32> {
        self.fair.entitled()
    }

    /// Skips the waiting requests of a key until `begin_attempt`.
    pub(crate) fn pass_over(&mut self, key: u64) {
        self.fair.pass_over(key);
    }

    pub(crate) fn begin_attempt(&mut self) {
        self.fair.begin_attempt();
    }

    /// All waiting requests, in the order they would be considered if none were admitted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.fifo.iter().chain(self.fair.iter()).map(|queued| queued.entry)
    }

    /// Removes an admitted request and charges its key.
    pub(crate) fn take(&mut self, entry: u32, sequence: &mut Sequence) {
        self.admissions += 1;
        if self.is_fair() {
            let is_first_admission = sequence.cold.timings.admitted.is_none();
            let Some(slots) = self.fair.take(sequence.params().key, entry, is_first_admission) else {
                return;
            };
            sequence.cold.charged_slots = slots;
            self.len -= 1;
            return;
        }
        self.extract(entry);
        if self.order == Order::Priority && self.admissions.is_multiple_of(AGEING_INTERVAL) {
            self.put_first_arrival_first();
        }
    }

    /// Releases the resources of a running request that ends.
    pub(crate) fn release(&mut self, sequence: &Sequence) {
        if self.is_fair() {
            self.fair.release(sequence, true);
        }
    }

    /// Gives the next admission to the request that arrived first.
    fn put_first_arrival_first(&mut self) {
        let first = self.fifo.iter().enumerate().min_by_key(|(_, queued)| queued.number);
        let Some(mut first) = first.map(|(at, _)| at).and_then(|at| self.fifo.remove(at)) else { return };
        first.priority = i64::MAX;
        self.fifo.push_front(first);
    }

    /// Removes a request that ended while waiting. False if it was not queued.
    pub(crate) fn remove(&mut self, entry: u32, sequence: &Sequence) -> bool {
        if !self.is_fair() {
            return self.extract(entry);
        }
        let is_removed = self.fair.remove(sequence.params().key, entry);
        self.len -= usize::from(is_removed);
        is_removed
    }

    pub(crate) fn refund(&mut self, key: u64, tokens: u32) {
        self.fair.refund(key, tokens.into());
    }

    pub(crate) fn charge(&mut self, key: u64, tokens: u32) {
        self.fair.refund(key, -i64::from(tokens));
    }

    fn extract(&mut self, entry: u32) -> bool {
        let at = self.fifo.iter().position(|queued| queued.entry == entry);
        let is_removed = at.and_then(|at| self.fifo.remove(at)).is_some();
        self.len -= usize::from(is_removed);
        is_removed
    }
}
