//! `Schedule`: future events by due time, then by creation.

use kvasir_engine::Nanos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event that compares by due time and then by number.
#[derive(Debug)]
struct Scheduled<T> {
    at: Nanos,
    number: u64,
    event: T,
}

impl<T> PartialEq for Scheduled<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<T> Eq for Scheduled<T> {}
impl<T> PartialOrd for Scheduled<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Scheduled<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Future events.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    heap: BinaryHeap<Reverse<Scheduled<T>>>,
    /// Number of events so far, which breaks ties of due times.
    number: u64,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }
}

impl<T> Schedule<T> {
    pub(crate) fn push(&mut self, at: Nanos, event: T) {
        self.number += 1;
        self.heap.push(Reverse(Scheduled { at, number: self.number, event }));
    }

    /// Due time of the next event.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(scheduled)| scheduled.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, T)> {
        self.heap.pop().map(|Reverse(Scheduled { at, event, .. })| (at, event))
    }
}
