//! A fork-join thread pool with a late-joiner cutoff.
//!
//! The caller participates as thread 0. Workers that have not joined by the time all items are
//! claimed are skipped, so a preempted worker on a busy machine delays nothing.
//!
//! `state` is one `u64`: the run number (epoch, upper 32 bits), the `OPEN` bit, and how many
//! workers are inside. Its states are:
//!
//! 1. Closed and empty: `OPEN` is clear and the count is 0. Only the thread that holds `caller` may
//!    write `job`.
//! 2. Open: the caller adds `EPOCH + OPEN`, which publishes `job`. A worker joins by a
//!    compare-and-swap that checks the epoch and `OPEN` and increments the count.
//! 3. Draining: the caller clears `OPEN`, after which no worker can join, and spins until the count
//!    is 0. Only then may `job` and what it borrows end.
//!
//! Ordering: the join reads the value that the open wrote, so the worker sees `job`. The caller's
//! load of count 0 reads the workers' decrements, so it sees all their writes and none still uses
//! `job`. Both guards (`JoinGuard`, `LeaveGuard`) run on unwinding too.
//!
//! Sleep and wake-up: a worker sets `asleep`, then modifies `state` (adding 0) and parks if the
//! epoch is unchanged; the caller modifies `state` too, then reads `asleep`. One modification comes
//! first, and the other reads what it published: the worker sees the new epoch, or the caller sees
//! it asleep. An unpark before the park is not lost.
//!
//! Work is claimed by counting items. No kernel may rely on a thread index or on all threads
//! joining. The tests at the end of the file cover late joiners and panics; `loom/` explores the
//! interleavings of runs, wake-ups and the end of the pool.

use crate::threads::prologue::{Prologue, spin_until};
use crate::threads::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Builder, JoinHandle, Mutex, MutexGuard, Ordering, SPINS,
    UnsafeCell, YIELDS, park, spin_loop, yield_now,
};
use crate::threads::worker::Worker;
use std::sync::PoisonError;

type Job = *const (dyn Fn(&mut Worker) + Sync);

/// A fork-join thread pool. The caller participates; workers that have not joined by the time all
/// items are claimed are skipped.
///
/// Idle workers spin briefly, then yield, then park, so an idle pool uses no CPU time. Engines on
/// one machine share one pool through an `Arc`. Runs are serialized, so two engines never have more
/// threads running than one.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Thread 0, whichever thread calls. Held during a run: two callers take turns.
    caller: Mutex<Worker>,
}

struct Shared {
    /// The epoch (upper 32 bits; a change is the call to work), [`OPEN`], and the number of workers
    /// inside.
    state: AtomicU64,
    /// The job of the current run; see the module's states.
    job: UnsafeCell<Option<Job>>,
    /// Tells workers to exit.
    stop: AtomicBool,
    /// Whether a worker panicked in the current run.
    failed: AtomicBool,
    /// Per worker: whether it is parked, or about to park.
    asleep: Vec<AtomicBool>,
}

/// Workers may join.
const OPEN: u64 = 1 << 31;
/// Mask of the number of workers inside.
const INSIDE: u64 = OPEN - 1;
/// Increment of the epoch.
const EPOCH: u64 = 1 << 32;

// SAFETY: `job` is written only while the run is closed and empty, and read only by workers
// inside.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure that outlives the run.
unsafe impl Send for Shared {}

impl ThreadPool {
    /// A pool of `threads` threads, the caller included; clamped to 1024, and fewer if the system
    /// cannot spawn them.
    pub fn new(threads: usize) -> Self {
        let helpers = threads.clamp(1, 1024) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
        });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            let builder = Builder::new().name(format!("kvasir-cpu-{}", index + 1));
            builder.spawn(move || shared.work(index)).ok()
        };
        let workers = (0..helpers).map_while(spawn).collect();
        Self { shared, workers, caller: Mutex::new(Worker::new(0)) }
    }

    /// A pool of as many threads as the system reports as available parallelism.
    pub fn of_machine() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Number of threads, the caller included: thread indices passed to jobs are below it.
    pub fn len(&self) -> usize {
        self.workers.len() + 1
    }

    /// Always false: the caller is a member.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn caller(&self) -> MutexGuard<'_, Worker> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `job` on the caller and on every worker that joins before the caller's own call
    /// returns; returns when all of them have finished. Panics if a worker panicked.
    fn run(&self, job: &(dyn Fn(&mut Worker) + Sync)) {
        let mut caller = self.caller();
        if self.workers.is_empty() {
            return job(&mut caller);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed; `JoinGuard` below keeps this function from ending,
        // even by unwinding, before all workers have left.
        let job_for_all: Job = unsafe { std::mem::transmute::<&(dyn Fn(&mut Worker) + Sync), Job>(job) };
        // SAFETY: the run is closed and no worker is inside, so none reads the cell.
        shared.job.with_mut(|job| unsafe { *job = Some(job_for_all) });
        // The previous run may have unwound by its own panic before it looked at a worker's
        // failure.
        shared.failed.store(false, Ordering::Relaxed);
        // A closed and empty state is the epoch alone, so this addition sets `OPEN`.
        shared.state.fetch_add(EPOCH + OPEN, Ordering::SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let close = JoinGuard(shared);
        job(&mut caller);
        drop(close);
        let failed = shared.failed.swap(false, Ordering::Relaxed);
        drop(caller);
        assert!(!failed, "a worker thread of the pool failed");
    }

    /// Dynamic scheduling: runs `job(worker, item)` for every item below `count`, claimed one by
    /// one from a shared counter.
    pub(crate) fn each(&self, count: usize, job: &(dyn Fn(&mut Worker, usize) + Sync)) {
        if count <= 1 {
            return (0..count).for_each(|i| job(&mut self.caller(), i));
        }
        let next = AtomicUsize::new(0);
        self.run(&|worker| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    break;
                }
                job(worker, i);
            }
        });
    }

    /// Static scheduling with work stealing: each thread walks a contiguous range of items in
    /// order, then helps other threads from the ends of their ranges. Streams of memory stay
    /// sequential per thread.
    pub(crate) fn each_in_order(&self, count: usize, job: &(dyn Fn(&mut Worker, usize) + Sync)) {
        self.each_in_order_after(&Prologue::none(), &|_| &[], count, job);
    }

    /// `each_in_order` after a prologue: the caller runs `first`, while the other threads warm up
    /// the bytes `first_bytes(item)` of their first item.
    pub(crate) fn each_in_order_after<'b>(
        &self,
        first: &Prologue<'_>,
        first_bytes: &(dyn Fn(usize) -> &'b [u8] + Sync),
        count: usize,
        job: &(dyn Fn(&mut Worker, usize) + Sync),
    ) {
        const MAX_THREADS: usize = 16;
        let threads = self.len();
        if count <= 1 || threads == 1 || threads > MAX_THREADS {
            first.run(&mut self.caller());
            return self.each(count, job);
        }
        let claims: [Claims; MAX_THREADS] = std::array::from_fn(|_| Claims(AtomicU64::new(0)));
        let bound = |range: usize| range * count / threads;
        self.run(&|worker| {
            let thread = worker.index;
            match thread {
                0 => first.run(worker),
                _ if first.is_done() => {}
                _ => first.wait(first_bytes(bound(thread))),
            }
            for range in (thread..threads).chain(0..thread) {
                let (first, end) = (bound(range), bound(range + 1));
                while let Some(i) = claims[range].take(range == thread, end - first) {
                    job(worker, first + i);
                }
            }
        });
    }
}

/// Claims of one thread's range: from its front in the lower half, from its back (stealing) in the
/// upper half. Padded against false sharing.
#[repr(align(128))]
struct Claims(AtomicU64);

impl Claims {
    /// Claims one of `count` items: the first unclaimed one, or the last.
    fn take(&self, first: bool, count: usize) -> Option<usize> {
        let claims = self.0.fetch_add(if first { 1 } else { 1 << 32 }, Ordering::Relaxed);
        let (before, behind) = (claims as u32 as usize, (claims >> 32) as usize);
        (before + behind < count).then(|| if first { before } else { count - 1 - behind })
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.state.fetch_add(EPOCH, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was reported by the run in which it happened.
            let _ = worker.join();
        }
    }
}

/// Join guard of the caller: closes the run and waits for the workers inside, when dropped.
struct JoinGuard<'a>(&'a Shared);

impl Drop for JoinGuard<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, Ordering::SeqCst);
        spin_until(|| self.0.state.load(Ordering::SeqCst) & INSIDE == 0);
    }
}

/// Leave guard of a worker: decrements the count and records a panic, when dropped.
struct LeaveGuard<'a>(&'a Shared);

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
        }
        self.0.state.fetch_sub(1, Ordering::SeqCst);
    }
}

fn epoch_of(state: u64) -> u32 {
    (state / EPOCH) as u32
}

impl Shared {
    /// The main loop of a worker.
    fn work(&self, index: usize) {
        let (mut seen, mut worker) = (0, Worker::new(index + 1));
        loop {
            seen = self.await_run(index, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if !self.enter(seen) {
                continue;
            }
            // SAFETY: this worker is inside, so the job is set, and it stays valid until the worker
            // leaves.
            let job = self.job.with(|job| unsafe { (*job).map(|job| &*job) });
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _done = LeaveGuard(self);
                if let Some(job) = job {
                    job(&mut worker);
                }
            }));
        }
    }

    /// Joins run `run` if it is still open.
    fn enter(&self, run: u32) -> bool {
        let open = |state: u64| (epoch_of(state) == run && state & OPEN != 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, open).is_ok()
    }

    /// Waits for an epoch other than `seen` by spinning, yielding and then parking; returns it.
    fn await_run(&self, index: usize, seen: u32) -> u32 {
        let mut waited = 0u32;
        loop {
            let run = epoch_of(self.state.load(Ordering::SeqCst));
            if run != seen {
                return run;
            }
            waited += 1;
            if waited < SPINS {
                spin_loop();
            } else if waited < SPINS + YIELDS {
                yield_now();
            } else {
                let Some(asleep) = self.asleep.get(index) else { continue };
                asleep.store(true, Ordering::SeqCst);
                // A modification, not a load: see the module's ordering of sleep and wake-up.
                if epoch_of(self.state.fetch_add(0, Ordering::SeqCst)) == seen {
                    park();
                }
                asleep.store(false, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_testkit::rounds;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    #[test]
    fn every_item_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = ThreadPool::new(threads);
            for round in 0..rounds(200) as usize {
                let sum = AtomicU64::new(0);
                pool.each(round, &|_, i| {
                    sum.fetch_add(i as u64 + 1, Ordering::Relaxed);
                });
                pool.each_in_order(round, &|_, i| {
                    sum.fetch_add(i as u64 + 1, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), (round * (round + 1)) as u64);
            }
        }
    }

    #[test]
    fn prologue_runs_once_before_any_item() {
        for threads in [1, 2, 3, 8] {
            let pool = ThreadPool::new(threads);
            for count in 0..rounds(300) as usize {
                let (before, seen) = (AtomicU32::new(0), AtomicU64::new(0));
                let job = |_: &mut Worker, _| {
                    before.fetch_add(1, Ordering::Relaxed);
                };
                let first = Prologue::of(1, &job);
                for round in 1..=2 {
                    pool.each_in_order_after(&first, &|_| &[7; 1000], count, &|_, i| {
                        assert_eq!(before.load(Ordering::Relaxed), 1);
                        seen.fetch_add(i as u64 + 1, Ordering::Relaxed);
                    });
                    assert_eq!(before.load(Ordering::Relaxed), 1);
                    assert_eq!(seen.load(Ordering::Relaxed), (round * count * (count + 1) / 2) as u64);
                }
            }
        }
    }

    #[test]
    fn a_failing_prologue_releases_all_threads() {
        let pool = ThreadPool::new(2);
        for _ in 0..rounds(100) {
            let job = |_: &mut Worker, _| panic!("on purpose");
            let fails = || pool.each_in_order_after(&Prologue::of(1, &job), &|_| &[], 64, &|_, _| {});
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fails)).is_err());
            pool.each_in_order(8, &|_, _| {});
        }
    }

    #[test]
    fn two_callers_take_turns() {
        let pool = ThreadPool::new(3);
        let inside = [AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|s| {
            for caller in 0..2 {
                let (pool, inside) = (&pool, &inside);
                s.spawn(move || {
                    for _ in 0..rounds(20) {
                        pool.each(3, &|_, _| {
                            inside[caller].fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(Duration::from_micros(100));
                            assert_eq!(inside[1 - caller].load(Ordering::SeqCst), 0);
                            inside[caller].fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
        });
    }

    #[test]
    fn parked_workers_wake() {
        let pool = ThreadPool::new(2);
        for _ in 0..3 {
            while !pool.shared.asleep[0].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Neither item ends before the other has begun, so the worker must wake up.
            let here = AtomicU32::new(0);
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            pool.each(2, &|_, _| {
                here.fetch_add(1, Ordering::SeqCst);
                while here.load(Ordering::SeqCst) < 2 {
                    assert!(std::time::Instant::now() < deadline, "no worker woke");
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_failed_run_does_not_fail_the_next() {
        let pool = ThreadPool::new(2);
        for _ in 0..rounds(100) {
            let fails = std::panic::AssertUnwindSafe(|| pool.each(64, &|_, _| panic!("on purpose")));
            assert!(std::panic::catch_unwind(fails).is_err());
            pool.each(8, &|_, _| {});
        }
    }

    #[test]
    fn late_workers_cannot_join_and_are_not_awaited() {
        let pool = ThreadPool::new(2);
        for _ in 0..rounds(1000) {
            pool.each(3, &|_, _| {});
            let state = pool.shared.state.load(Ordering::SeqCst);
            assert_eq!(state & (OPEN | INSIDE), 0);
            // What a worker does that is scheduled only now, and one that is still at the previous
            // run.
            assert!(
                !pool.shared.enter(epoch_of(state)) && !pool.shared.enter(epoch_of(state).wrapping_sub(1))
            );
        }
    }

    #[test]
    #[should_panic(expected = "worker thread")]
    fn a_failing_worker_fails_the_run_and_nothing_hangs() {
        let pool = ThreadPool::new(2);
        // Repeats until the worker has joined once.
        for _ in 0..10_000 {
            pool.each(2, &|worker, _| {
                std::thread::sleep(Duration::from_micros(200));
                assert_ne!(worker.index, 1);
            });
        }
    }
}
