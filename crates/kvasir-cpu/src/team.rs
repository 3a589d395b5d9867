use crate::first::First;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// How often a thread looks for work before it gives its core away; some tens of microseconds.
const SPINS: u32 = 2000;
/// Times it lets others run before it sleeps.
const YIELDS: u32 = 20;

type Job = *const (dyn Fn(usize) + Sync);

/// Threads that run one piece of work together: fork and join. The caller is one of them, and waits only for those that have come in before the
/// work was all taken: on a busy machine a thread that gets no core in time is not waited for.
///
/// Waiting threads spin for a moment, then let others run, then sleep, so an idle team uses no processor. Engines on one machine share one
/// team (an `Arc`): runs take turns, so two engines never have more threads running than one.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    turn: Mutex<()>,
}

struct Shared {
    /// The number of the run (the upper half; a change is the call to work), whether workers may still come in ([`OPEN`]), and how many are in.
    gate: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    failed: AtomicBool,
    asleep: Vec<AtomicBool>,
}

/// Workers may come in.
const OPEN: u64 = 1 << 31;
/// How many are in.
const INSIDE: u64 = OPEN - 1;
/// One run more.
const NEXT: u64 = 1 << 32;

// SAFETY: `job` is written only while the gate is closed and nobody is in, and read only inside.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure that outlives the run.
unsafe impl Send for Shared {}

impl Team {
    /// A team of `threads` threads, the caller included. Fewer if the system gives no more.
    pub fn new(threads: usize) -> Self {
        let helpers = threads.clamp(1, 1024) - 1;
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
        });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("kvasir-cpu-{}", index + 1));
            builder.spawn(move || shared.work(index)).ok()
        };
        let workers = (0..helpers).map_while(spawn).collect();
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// As many threads as the system says can run at once.
    pub fn of_machine() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Number of threads, the caller included.
    pub fn len(&self) -> usize {
        self.workers.len() + 1
    }

    /// Never: the caller is always there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Runs `job(thread)` here, and on every other thread of the team that comes before it is done here; returns when all of them are done.
    fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return job(0);
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed; `Close` below does not let this function end, even by unwinding, before all workers are out.
        let job_for_all: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: the gate is closed and nobody is in, so none reads the place.
        unsafe { *shared.job.get() = Some(job_for_all) };
        // The run before may have ended in a panic of its own before it saw that of a worker.
        shared.failed.store(false, Ordering::Relaxed);
        // A closed gate with nobody in is the number of the last run alone.
        shared.gate.fetch_add(NEXT + OPEN, Ordering::SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&shared.asleep) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let close = Close(shared);
        job(0);
        drop(close);
        let failed = shared.failed.swap(false, Ordering::Relaxed);
        drop(turn);
        assert!(!failed, "a worker thread of the team failed");
    }

    /// Runs `job(thread, item)` for every item below `count`, shared out as threads become free.
    pub fn each(&self, count: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        if count <= 1 {
            return (0..count).for_each(|i| job(0, i));
        }
        let next = AtomicUsize::new(0);
        self.run(&|thread| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    break;
                }
                job(thread, i);
            }
        });
    }

    /// The same, but each thread goes through a stretch of neighbouring items of its own, and helps others when it is done, from the ends of
    /// theirs: what is read through in order stays in order.
    pub fn each_in_order(&self, count: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        self.each_in_order_after(&First::nothing(), &|_| &[], count, job);
    }

    /// The same after something that is done `first`, here, while the others read some of the bytes that their first item begins with.
    pub(crate) fn each_in_order_after<'b>(
        &self,
        first: &First<'_>,
        begins: &(dyn Fn(usize) -> &'b [u8] + Sync),
        count: usize,
        job: &(dyn Fn(usize, usize) + Sync),
    ) {
        const MOST: usize = 16;
        let threads = self.len();
        if count <= 1 || threads == 1 || threads > MOST {
            first.run();
            return self.each(count, job);
        }
        let taken = [const { Taken(AtomicU64::new(0)) }; MOST];
        let bound = |stretch: usize| stretch * count / threads;
        self.run(&|thread| {
            match thread {
                0 => first.run(),
                _ if first.is_done() => {}
                _ => first.wait(begins(bound(thread))),
            }
            for stretch in (thread..threads).chain(0..thread) {
                let (first, end) = (bound(stretch), bound(stretch + 1));
                while let Some(i) = taken[stretch].take(stretch == thread, end - first) {
                    job(thread, first + i);
                }
            }
        });
    }
}

/// How many items of a stretch are taken: of the first ones in the lower half, of the last ones in the upper. In a cache line of its own.
#[repr(align(128))]
struct Taken(AtomicU64);

impl Taken {
    /// Takes one of so many, the first or the last that is left.
    fn take(&self, first: bool, count: usize) -> Option<usize> {
        let taken = self.0.fetch_add(if first { 1 } else { 1 << 32 }, Ordering::Relaxed);
        let (before, behind) = (taken as u32 as usize, (taken >> 32) as usize);
        (before + behind < count).then(|| if first { before } else { count - 1 - behind })
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.gate.fetch_add(NEXT, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            Thread::unpark(worker.thread());
            // A worker that failed has said so in the run it failed in.
            let _ = worker.join();
        }
    }
}

/// Waits for what another thread is about to do.
pub(crate) fn spin_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins = spins.saturating_add(1);
        if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

/// Lets nobody in any more, and waits for those who are, when dropped.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_and(!OPEN, Ordering::SeqCst);
        spin_until(|| self.0.gate.load(Ordering::SeqCst) & INSIDE == 0);
    }
}

/// Says that a worker is out, also when its job panicked.
struct Done<'a>(&'a Shared);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
        }
        self.0.gate.fetch_sub(1, Ordering::SeqCst);
    }
}

fn number(gate: u64) -> u32 {
    (gate / NEXT) as u32
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.await_run(index, seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if !self.enter(seen) {
                continue;
            }
            // SAFETY: this worker is in, so the job is set, and it stays until it is out again.
            let job = unsafe { (*self.job.get()).map(|job| &*job) };
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _done = Done(self);
                if let Some(job) = job {
                    job(index + 1);
                }
            }));
        }
    }

    /// Comes in to run number `run`, if it is still open.
    fn enter(&self, run: u32) -> bool {
        let open = |gate: u64| (number(gate) == run && gate & OPEN != 0).then_some(gate + 1);
        self.gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, open).is_ok()
    }

    fn await_run(&self, index: usize, seen: u32) -> u32 {
        let mut waited = 0u32;
        loop {
            let run = number(self.gate.load(Ordering::SeqCst));
            if run != seen {
                return run;
            }
            waited += 1;
            if waited < SPINS {
                std::hint::spin_loop();
            } else if waited < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                let Some(asleep) = self.asleep.get(index) else { continue };
                asleep.store(true, Ordering::SeqCst);
                if number(self.gate.load(Ordering::SeqCst)) == seen {
                    std::thread::park();
                }
                asleep.store(false, Ordering::SeqCst);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    #[test]
    fn every_item_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads);
            for round in 0..200 {
                let sum = AtomicU64::new(0);
                team.each(round, &|_, i| {
                    sum.fetch_add(i as u64 + 1, Ordering::Relaxed);
                });
                team.each_in_order(round, &|_, i| {
                    sum.fetch_add(i as u64 + 1, Ordering::Relaxed);
                });
                assert_eq!(sum.into_inner(), (round * (round + 1)) as u64);
            }
        }
    }

    #[test]
    fn what_comes_first_is_done_once_and_before_any_item() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads);
            for count in 0..50 {
                let (before, seen) = (AtomicU32::new(0), AtomicU64::new(0));
                let job = || {
                    before.fetch_add(1, Ordering::Relaxed);
                };
                let first = First::of(&job);
                for round in 1..=2 {
                    team.each_in_order_after(&first, &|_| &[7; 1000], count, &|_, i| {
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
    fn nobody_waits_for_what_fails_first() {
        let team = Team::new(2);
        for _ in 0..100 {
            let job = || panic!("on purpose");
            let fails = || team.each_in_order_after(&First::of(&job), &|_| &[], 64, &|_, _| {});
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fails)).is_err());
            team.each_in_order(8, &|_, _| {});
        }
    }

    #[test]
    fn two_callers_take_turns() {
        let team = Team::new(3);
        let inside = [AtomicU32::new(0), AtomicU32::new(0)];
        std::thread::scope(|s| {
            for caller in 0..2 {
                let (team, inside) = (&team, &inside);
                s.spawn(move || {
                    for _ in 0..20 {
                        team.each(3, &|_, _| {
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
    fn sleepers_wake() {
        let team = Team::new(2);
        for _ in 0..3 {
            while !team.shared.asleep[0].load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Neither item ends before the other has begun.
            let here = AtomicU32::new(0);
            let patience = std::time::Instant::now() + Duration::from_secs(60);
            team.each(2, &|_, _| {
                here.fetch_add(1, Ordering::SeqCst);
                while here.load(Ordering::SeqCst) < 2 {
                    assert!(std::time::Instant::now() < patience, "nobody woke");
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_failed_run_does_not_fail_the_next() {
        let team = Team::new(2);
        for _ in 0..100 {
            let fails = std::panic::AssertUnwindSafe(|| team.each(64, &|_, _| panic!("on purpose")));
            assert!(std::panic::catch_unwind(fails).is_err());
            team.each(8, &|_, _| {});
        }
    }

    #[test]
    fn who_comes_late_is_not_let_in_and_not_waited_for() {
        let team = Team::new(2);
        for _ in 0..1000 {
            team.each(3, &|_, _| {});
            let gate = team.shared.gate.load(Ordering::SeqCst);
            assert_eq!(gate & (OPEN | INSIDE), 0);
            // As the worker would do it that gets its core only now, and one that is still at the run before.
            assert!(!team.shared.enter(number(gate)) && !team.shared.enter(number(gate).wrapping_sub(1)));
        }
    }

    #[test]
    #[should_panic(expected = "worker thread")]
    fn a_failing_worker_fails_the_run_and_nothing_hangs() {
        let team = Team::new(2);
        // Until the worker has come in once.
        for _ in 0..10_000 {
            team.each(2, &|thread, _| {
                std::thread::sleep(Duration::from_micros(200));
                assert_ne!(thread, 1);
            });
        }
    }
}
