//! `EventQueue`: a priority queue of future events, by due time and then by insertion.

use kvasir_engine::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event that compares by due time and then by number.
#[derive(Debug)]
struct QueuedEvent<T> {
    at: Nanos,
    number: u64,
    event: T,
}

impl<T> PartialEq for QueuedEvent<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<T> Eq for QueuedEvent<T> {}
impl<T> PartialOrd for QueuedEvent<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for QueuedEvent<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Future events, earliest first.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    heap: BinaryHeap<Reverse<QueuedEvent<T>>>,
    /// Number of insertions so far, which breaks ties of due times.
    number: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn push(&mut self, at: Nanos, event: T) {
        self.number += 1;
        self.heap.push(Reverse(QueuedEvent { at, number: self.number, event }));
    }

    /// Due time of the next event.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(scheduled)| scheduled.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, T)> {
        self.heap.pop().map(|Reverse(QueuedEvent { at, event, .. })| (at, event))
    }
}
