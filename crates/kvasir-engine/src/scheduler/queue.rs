//! The waiting queue and its orders: FCFS, priority, and fair queueing (deficit round robin over
//! client keys).
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
    /// Deficit round robin over client keys: each key with waiting requests gets the same token
    /// throughput.
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
}

/// The requests of one key, with its token deficit.
#[derive(Debug, Default)]
struct Flow {
    fifo: VecDeque<Queued>,
    deficit: i64,
}

impl Queued {
    fn new(entry: u32, sequence: &Sequence) -> Self {
        let cost = i64::from(sequence.len()) + i64::from(sequence.outputs_left());
        Self { entry, priority: sequence.params().priority.into(), number: sequence.number(), cost }
    }
}

impl Queue {
    pub(crate) fn new(order: Order) -> Self {
        Self { order, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Enqueues a new request. O(n) under `Priority`.
    pub(crate) fn push(&mut self, entry: u32, sequence: &Sequence) {
        let queued = Queued::new(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.fifo.push_back(queued),
            Order::Priority => {
                let at = self.fifo.partition_point(|other| other.priority >= queued.priority);
                self.fifo.insert(at, queued);
            }
            Order::Fair => {
                self.flow(sequence.params().key).fifo.push_back(queued);
                self.advance();
            }
        }
    }

    /// Enqueues a preempted request ahead of its priority class or key, and refunds its cost.
    pub(crate) fn push_front(&mut self, entry: u32, sequence: &Sequence) {
        let queued = Queued::new(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.fifo.push_front(queued),
            Order::Priority => {
                let at = self.fifo.partition_point(|other| other.priority > queued.priority);
                self.fifo.insert(at, queued);
            }
            Order::Fair => {
                let flow = self.flow(sequence.params().key);
                flow.fifo.push_front(queued);
                flow.deficit += queued.cost;
                self.advance();
            }
        }
    }

    pub(crate) fn front(&self) -> Option<u32> {
        let flow = || self.active.iter().find_map(|key| self.flows.get(key)?.fifo.front());
        self.fifo.front().or_else(flow).map(|queued| queued.entry)
    }

    /// All waiting requests, in the order they would be considered if none were admitted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let deepest = self.flows.values().map(|flow| flow.fifo.len()).max().unwrap_or(0);
        let by_round = (0..deepest).flat_map(move |depth| {
            self.active.iter().filter_map(move |key| self.flows.get(key)?.fifo.get(depth))
        });
        self.fifo.iter().chain(by_round).map(|queued| queued.entry)
    }

    /// Removes an admitted request and charges its key. False if it was not queued.
    pub(crate) fn take(&mut self, entry: u32, sequence: &Sequence) -> bool {
        let key = sequence.params().key;
        let Some(queued) = self.extract(entry, key) else { return false };
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.deficit -= queued.cost;
        }
        self.admissions += 1;
        if self.order == Order::Priority && self.admissions.is_multiple_of(AGEING_INTERVAL) {
            self.put_first_arrival_first();
        }
        self.advance();
        true
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
