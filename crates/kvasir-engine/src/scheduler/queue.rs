//! The waiting queue and its orders: FCFS, priority, and fair queueing (deficit round robin over
//! client keys).
//!
//! Deficit round robin: each turn grants a key `QUANTUM` tokens. Its first request may be admitted
//! once the deficit covers its cost, which is prompt tokens plus the maximum of its output tokens.
//! Unused output tokens are refunded. A preempted request returns to the front of its priority
//! class or key.

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
    /// Higher priority first, then by arrival.
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

/// Waiting requests in admission order. Preempted requests go to the front.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    order: Order,
    /// All requests under `Fcfs` and `Priority`.
    line: VecDeque<Ticket>,
    /// All requests by key under `Fair`; only keys with waiting requests.
    lanes: BTreeMap<u64, Lane>,
    /// Keys in round-robin order; the first is being served.
    round: VecDeque<u64>,
    /// The key that has received its quantum in this turn.
    granted: Option<u64>,
    len: usize,
}

/// A queued request: its table entry and the copies of what its order needs.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    entry: u32,
    priority: i32,
    cost: i64,
}

/// The requests of one key, with its token deficit.
#[derive(Debug, Default)]
struct Lane {
    line: VecDeque<Ticket>,
    deficit: i64,
}

impl Ticket {
    fn new(entry: u32, sequence: &Sequence) -> Self {
        let cost = i64::from(sequence.len()) + i64::from(sequence.outputs_left());
        Self { entry, priority: sequence.params().priority, cost }
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
        let ticket = Ticket::new(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.line.push_back(ticket),
            Order::Priority => {
                let at = self.line.partition_point(|other| other.priority >= ticket.priority);
                self.line.insert(at, ticket);
            }
            Order::Fair => {
                self.lane(sequence.params().key).line.push_back(ticket);
                self.settle();
            }
        }
    }

    /// Enqueues a preempted request ahead of its priority class or key, and refunds its cost.
    pub(crate) fn push_front(&mut self, entry: u32, sequence: &Sequence) {
        let ticket = Ticket::new(entry, sequence);
        self.len += 1;
        match self.order {
            Order::Fcfs => self.line.push_front(ticket),
            Order::Priority => {
                let at = self.line.partition_point(|other| other.priority > ticket.priority);
                self.line.insert(at, ticket);
            }
            Order::Fair => {
                let lane = self.lane(sequence.params().key);
                lane.line.push_front(ticket);
                lane.deficit += ticket.cost;
                self.settle();
            }
        }
    }

    /// The head of the queue.
    pub(crate) fn front(&self) -> Option<u32> {
        let lane = || self.round.iter().find_map(|key| self.lanes.get(key)?.line.front());
        self.line.front().or_else(lane).map(|ticket| ticket.entry)
    }

    /// All waiting requests, in the order they would be considered if none were admitted.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let deepest = self.lanes.values().map(|lane| lane.line.len()).max().unwrap_or(0);
        let by_round = (0..deepest).flat_map(move |depth| {
            self.round.iter().filter_map(move |key| self.lanes.get(key)?.line.get(depth))
        });
        self.line.iter().chain(by_round).map(|ticket| ticket.entry)
    }

    /// Removes an admitted request and charges its key. False if it was not queued.
    pub(crate) fn take(&mut self, entry: u32, sequence: &Sequence) -> bool {
        let key = sequence.params().key;
        let Some(ticket) = self.pull(entry, key) else { return false };
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.deficit -= ticket.cost;
        }
        self.settle();
        true
    }

    /// Removes a request that ended while waiting. False if it was not queued.
    pub(crate) fn remove(&mut self, entry: u32, sequence: &Sequence) -> bool {
        let found = self.pull(entry, sequence.params().key).is_some();
        self.settle();
        found
    }

    /// Refunds tokens that were charged to a key and not used.
    pub(crate) fn refund(&mut self, key: u64, tokens: u32) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.deficit += i64::from(tokens);
        }
    }

    fn lane(&mut self, key: u64) -> &mut Lane {
        if !self.lanes.contains_key(&key) {
            self.round.push_back(key);
        }
        self.lanes.entry(key).or_default()
    }

    fn pull(&mut self, entry: u32, key: u64) -> Option<Ticket> {
        let line = match self.order {
            Order::Fair => &mut self.lanes.get_mut(&key)?.line,
            Order::Fcfs | Order::Priority => &mut self.line,
        };
        let at = line.iter().position(|ticket| ticket.entry == entry)?;
        let ticket = line.remove(at)?;
        self.len -= 1;
        Some(ticket)
    }

    /// Drops empty keys and advances the round robin to a key whose deficit covers its first
    /// request.
    fn settle(&mut self) {
        let lanes = &mut self.lanes;
        self.round.retain(|key| lanes.get(key).is_some_and(|lane| !lane.line.is_empty()));
        lanes.retain(|_, lane| !lane.line.is_empty());
        let short = |lane: &Lane| lane.line.front().map_or(0, |head| head.cost - lane.deficit);
        // Grant at once all full rounds in which no key could afford its first request.
        let rounds = lanes.values().map(|lane| (short(lane) - 1).div_euclid(QUANTUM)).min().unwrap_or(0);
        if rounds > 0 {
            lanes.values_mut().for_each(|lane| lane.deficit += rounds * QUANTUM);
        }
        while let Some(&key) = self.round.front() {
            let Some(lane) = lanes.get_mut(&key) else { return };
            if self.granted != Some(key) {
                self.granted = Some(key);
                lane.deficit += QUANTUM;
            }
            if short(lane) <= 0 {
                return;
            }
            self.round.rotate_left(1);
            self.granted = None;
        }
    }
}
