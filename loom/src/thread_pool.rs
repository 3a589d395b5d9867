//! Models of the fork-join thread pool.
//!
//! Each ends by dropping its pool, which joins the workers: a lost wake-up is a deadlock there.

use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::threads::worker::Worker;
use loom::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

pub(crate) const MODELS: &[(&str, fn())] = &[
    ("pool: items_run_once_and_their_writes_are_seen", items_run_once_and_their_writes_are_seen),
    ("pool: prologue_precedes_all_items", prologue_precedes_all_items),
    ("pool: parked_workers_wake", parked_workers_wake),
    ("pool: two_callers_take_turns", two_callers_take_turns),
];

/// A number that is written without synchronization: `loom` reports accesses that race.
struct Plain(Cell<usize>);

// SAFETY: a claim for `loom` to check.
unsafe impl Sync for Plain {}

impl Plain {
    fn new() -> Self {
        Self(Cell::new(0))
    }

    fn add(&self) {
        self.0.set(self.get() + 1);
    }

    fn get(&self) -> usize {
        self.0.get()
    }
}

/// The second run begins while the worker is parked, on its way there, or still in the first.
fn items_run_once_and_their_writes_are_seen() {
    let pool = ThreadPool::new(2);
    let items = [Plain::new(), Plain::new()];
    for run in 1..=2 {
        pool.each(2, &|_, item| items[item].add());
        assert_eq!(items.each_ref().map(Plain::get), [run; 2]);
    }
}

fn prologue_precedes_all_items() {
    let pool = ThreadPool::new(2);
    let (before, items) = (Plain::new(), [Plain::new(), Plain::new()]);
    let job = |_: &mut Worker, _| before.add();
    pool.each_in_order_after(&Prologue::of(1, &job), &|_| &[], 2, &|_, item| {
        assert_eq!(before.get(), 1);
        items[item].add();
    });
    assert_eq!(items.each_ref().map(Plain::get), [1; 2]);
}

/// Neither item ends before the other has begun, so the worker must wake up.
fn parked_workers_wake() {
    let pool = ThreadPool::new(2);
    let here = AtomicUsize::new(0);
    pool.each(2, &|_, _| {
        here.fetch_add(1, Ordering::AcqRel);
        while here.load(Ordering::Acquire) < 2 {
            thread::yield_now();
        }
    });
}

fn two_callers_take_turns() {
    let pool = Arc::new(ThreadPool::new(2));
    let call = |pool: &ThreadPool| {
        let items = [Plain::new(), Plain::new()];
        pool.each(2, &|_, item| items[item].add());
        assert_eq!(items.each_ref().map(Plain::get), [1; 2]);
    };
    let other = {
        let pool = pool.clone();
        thread::spawn(move || call(&pool))
    };
    call(&pool);
    other.join().unwrap();
}
