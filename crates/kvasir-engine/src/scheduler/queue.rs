//! The waiting queue and its orders: FCFS, priority, and fair queueing over client keys.
//!
//! Fair queueing: keys whose next request is within their entitlement come first, then those with
//! the lowest dominant share (`fair_share.rs`). Keys of equal rank take turns by deficit round
//! robin.
//!
//! Deficit round robin: each turn grants a key `QUANTUM` tokens. Its first request may be admitted
//! once the deficit covers its cost, which is prompt tokens plus the maximum of its output tokens.
//! Unused output tokens are refunded. A preempted request returns to the front of its priority
//! class or key.
//!
//! Priority with ageing: of every [`AGEING_INTERVAL`] admissions one goes to the request that arrived
//! first, whatever its priority. So no priority starves, and a flood of old requests delays urgent ones
//! by that share only.

use crate::request::sequence::Sequence;
use crate::scheduler::fair_share::{KeyUse, Resources};
use crate::scheduler::limits::Limits;
use kvasir_kv::CacheShape;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

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

/// Tokens granted to a key per turn of the round robin.
const QUANTUM: i64 = 1024;
/// Admissions under `Priority` of which one goes to the first arrival.
const AGEING_INTERVAL: u64 = 16;

/// Waiting requests in admission order. Preempted requests go to the front.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    order: Order,
    /// All requests under `Fcfs` and `Priority`.
    fifo: VecDeque<Queued>,
    /// All requests by key under `Fair`; only keys with waiting requests.
    flows: BTreeMap<u64, Flow>,
    /// Keys in round-robin order; the first is being served.
    active: VecDeque<u64>,
    /// The key that has received its quantum in this turn.
    granted: Option<u64>,
    /// Resources that running requests use, per key, under `Fair`.
    used: KeyUse,
    /// Keys that are skipped for the rest of this scheduling attempt.
    passed: Vec<u64>,
    /// Block size of the cache in slots.
    block: u32,
    /// Size of the cache in slots.
    capacity: u32,
    /// Admissions so far.
    admissions: u64,
    len: usize,
}

/// A queued request: its table entry and the copies of what its order needs.
#[derive(Clone, Copy, Debug)]
struct Queued {
    entry: u32,
    /// Its priority; the largest value for the first arrival when its turn has come.
    priority: i64,
    /// Arrival number.
    number: u64,
    cost: i64,
    /// Prompt tokens to feed, and after a preemption the outputs to recompute.
    tokens: u64,
    /// KV slots at its maximum length, in whole blocks.
    slots: u64,
}

/// The requests of one key, with its token deficit.
#[derive(Debug, Default)]
struct Flow {
    fifo: VecDeque<Queued>,
    deficit: i64,
    /// Tokens to feed of all its requests.
    tokens: u64,
}

impl Queue {
    pub(crate) fn new(order: Order, limits: &Limits, shape: &CacheShape) -> Self {
        let total = Resources { sequences: limits.max_num_seqs.into(), slots: shape.capacity.into() };
        Self {
            order,
            used: KeyUse::new(total),
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
            Order::Fair => {
                let flow = self.flow(sequence.params().key);
                flow.tokens += queued.tokens;
                flow.fifo.push_back(queued);
                self.advance();
            }
        }
    }

    /// Enqueues a preempted request ahead of its priority class or key, and refunds its cost.
    pub(crate) fn push_front(&mut self, entry: u32, sequence: &Sequence) {
        self.release(sequence);
        let queued = self.queued(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.fifo.push_front(queued),
            Order::Priority => {
                let at = self.fifo.partition_point(|other| other.priority > queued.priority);
                self.fifo.insert(at, queued);
            }
            Order::Fair => {
                let flow = self.flow(sequence.params().key);
                flow.tokens += queued.tokens;
                flow.fifo.push_front(queued);
                flow.deficit += queued.cost;
                self.advance();
            }
        }
    }

    /// The request to consider next.
    pub(crate) fn front(&self) -> Option<u32> {
        let key = || self.ranked(&self.passed).next();
        let of_flow = || self.flows.get(&key()?)?.fifo.front();
        self.fifo.front().or_else(of_flow).map(|queued| queued.entry)
    }

    /// The request that `Fair` considers first, if it is within its key's entitlement. Ignores
    /// skipped keys.
    pub(crate) fn entitled(&self) -> Option<u32> {
        let key = self.ranked(&self.passed).next()?;
        let head = self.flows.get(&key)?.fifo.front()?;
        self.used.entitles(key, head.slots, self.keys()).then_some(head.entry)
    }

    /// Skips the waiting requests of a key until `begin_attempt`.
    pub(crate) fn pass_over(&mut self, key: u64) {
        self.passed.push(key);
    }

    pub(crate) fn begin_attempt(&mut self) {
        self.passed.clear();
    }

    /// Resources that running requests use, per key, under `Fair`.
    pub(crate) fn used(&self) -> &KeyUse {
        &self.used
    }

    /// Number of keys with waiting or running requests, under `Fair`. O(keys).
    pub(crate) fn keys(&self) -> usize {
        self.flows.len() + self.used.keys().filter(|key| !self.flows.contains_key(key)).count()
    }

    /// Waiting keys whose first request is within their entitlement, with the tokens to feed of all
    /// their requests.
    pub(crate) fn entitled_tokens(&self) -> impl Iterator<Item = (u64, u64)> {
        let keys = self.keys();
        self.flows.iter().filter_map(move |(key, flow)| {
            let head = flow.fifo.front()?;
            self.used.entitles(*key, head.slots, keys).then_some((*key, flow.tokens))
        })
    }

    /// Keys with waiting requests in the order of `Fair`, without `skipped`. O(n log n) for n keys.
    fn ranked(&self, skipped: &[u64]) -> impl Iterator<Item = u64> {
        let keys = self.keys();
        let rank = |key: &u64| {
            let slots = self.flows.get(key).and_then(|flow| flow.fifo.front()).map_or(0, |head| head.slots);
            (!self.used.entitles(*key, slots, keys), self.used.dominant_share(*key))
        };
        let mut ranked: Vec<_> =
            self.active.iter().filter(|key| !skipped.contains(key)).map(|key| (rank(key), *key)).collect();
        // Stable: keys of equal rank stay in round-robin order.
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, key)| key)
    }

    /// All waiting requests, in the order they would be considered if none were admitted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let deepest = self.flows.values().map(|flow| flow.fifo.len()).max().unwrap_or(0);
        let keys: Vec<u64> = self.ranked(&[]).collect();
        let by_round = (0..deepest).flat_map(move |depth| {
            let at_depth = |key: &u64| self.flows.get(key)?.fifo.get(depth);
            keys.iter().filter_map(at_depth).collect::<Vec<_>>()
        });
        self.fifo.iter().chain(by_round).map(|queued| queued.entry)
    }

    /// Removes an admitted request and charges its key.
    pub(crate) fn take(&mut self, entry: u32, sequence: &mut Sequence) {
        let key = sequence.params().key;
        let Some(queued) = self.extract(entry, key) else { return };
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.deficit -= queued.cost;
        }
        if self.is_fair() {
            self.used.take(key, queued.slots);
            sequence.cold.charged_slots = queued.slots;
        }
        self.admissions += 1;
        if self.order == Order::Priority && self.admissions.is_multiple_of(AGEING_INTERVAL) {
            self.put_first_arrival_first();
        }
        self.advance();
    }

    /// Releases the resources of a running request that ends or is preempted.
    pub(crate) fn release(&mut self, sequence: &Sequence) {
        if self.is_fair() {
            self.used.release(sequence.params().key, sequence.cold.charged_slots);
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
        let found = self.extract(entry, sequence.params().key).is_some();
        self.advance();
        found
    }

    pub(crate) fn refund(&mut self, key: u64, tokens: u32) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.deficit += i64::from(tokens);
        }
    }

    pub(crate) fn charge(&mut self, key: u64, tokens: u32) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.deficit -= i64::from(tokens);
            self.advance();
        }
    }

    fn flow(&mut self, key: u64) -> &mut Flow {
        if !self.flows.contains_key(&key) {
            self.active.push_back(key);
        }
        self.flows.entry(key).or_default()
    }

    fn extract(&mut self, entry: u32, key: u64) -> Option<Queued> {
        let fifo = match self.order {
            Order::Fair => &mut self.flows.get_mut(&key)?.fifo,
            Order::Fcfs | Order::Priority => &mut self.fifo,
        };
        let at = fifo.iter().position(|queued| queued.entry == entry)?;
        let queued = fifo.remove(at)?;
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.tokens -= queued.tokens;
        }
        self.len -= 1;
        Some(queued)
    }

    /// Drops empty keys and advances the round robin to a key whose deficit covers its first
    /// request.
    fn advance(&mut self) {
        let flows = &mut self.flows;
        self.active.retain(|key| flows.get(key).is_some_and(|flow| !flow.fifo.is_empty()));
        flows.retain(|_, flow| !flow.fifo.is_empty());
        let shortfall = |flow: &Flow| flow.fifo.front().map_or(0, |head| head.cost - flow.deficit);
        // Grant at once all full rounds in which no key could afford its first request.
        let rounds = flows.values().map(|flow| (shortfall(flow) - 1).div_euclid(QUANTUM)).min().unwrap_or(0);
        if rounds > 0 {
            flows.values_mut().for_each(|flow| flow.deficit += rounds * QUANTUM);
        }
        while let Some(&key) = self.active.front() {
            let Some(flow) = flows.get_mut(&key) else { return };
            if self.granted != Some(key) {
                self.granted = Some(key);
                flow.deficit += QUANTUM;
            }
            if shortfall(flow) <= 0 {
                return;
            }
            self.active.rotate_left(1);
            self.granted = None;
        }
    }
}
