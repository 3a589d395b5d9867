//! Auto-tunes the software prefetch distance of streaming kernels.
//!
//! Processors differ in their hardware prefetchers and fill buffers, and memory bandwidth on shared
//! machines changes by the minute. So the candidates are measured during regular work (a bandit
//! with periodic exploration):
//!
//! 1. Explore: the candidates (`CANDIDATES`) take turns, `TRIES` measurements each, in seconds per byte.
//!    Jobs above `PART_BYTES` bytes are split, and each part is one measurement.
//! 2. Decide: a candidate's slowdown against the round's best median is added to its decayed
//!    slowdown of earlier rounds. The smallest total wins.
//! 3. Exploit: the winner is used until `PERIOD` measurements have passed since the round began.
//!
//! Measurements are exclusive: a job that finds the lock taken runs untimed. No result depends on
//! the distance. Decision 0020 has the measurements; the tests below cover convergence and
//! fairness.

use crate::prefetch::hint::{CacheLevel, PAGE, prefetch_line};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Instant;

/// One candidate: the prefetch distances of a streaming kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrefetchDistance {
    /// Distance in bytes of the L2 prefetch.
    far: usize,
    /// The L2 prefetch is issued only if its first line lies within this many bytes of a page's
    /// start.
    of_page: usize,
    /// Distance in bytes of the L1 prefetch.
    near: Option<usize>,
}

/// The candidates; the first is used until a round has finished. Addresses past the end of a stream
/// are usually read next.
const CANDIDATES: [PrefetchDistance; 5] = [
    // Best on Intel servers: within a 4 KB page, where it also triggers the hardware prefetcher,
    // and once more just before use.
    PrefetchDistance { far: 3584, of_page: PAGE, near: Some(256) },
    // Best on AMD: a software prefetch occupies one of few fill buffers, while the hardware
    // prefetcher has more. So it only gets a hint that the next page is wanted.
    PrefetchDistance { far: PAGE, of_page: 512, near: None },
    PrefetchDistance { far: PAGE, of_page: 512, near: Some(256) },
    // For streams that are not read in order, such as the fifth bits of 5-bit codes: the prefetch
    // restores the order.
    PrefetchDistance { far: 2 * PAGE, of_page: 512, near: Some(2048) },
    PrefetchDistance { far: 2 * PAGE, of_page: PAGE, near: None },
];

impl PrefetchDistance {
    /// Issues the prefetches for `lines` cache lines from `from` on. The distances are checked once
    /// for all of them: a branch per line would cost a tenth of a kernel's time.
    #[inline(always)]
    pub(crate) fn prefetch(self, from: *const u8, lines: usize) {
        let lines = |ahead: usize| (0..lines).map(move |line| from.wrapping_add(ahead + line * 64));
        if let Some(near) = self.near {
            lines(near).for_each(|line| prefetch_line(CacheLevel::L1, line));
        }
        if (from as usize).wrapping_add(self.far) % PAGE < self.of_page {
            lines(self.far).for_each(|line| prefetch_line(CacheLevel::L2, line));
        }
    }
}

/// Measurements of each candidate in a round. Their median counts, as some are disturbed.
const TRIES: usize = 21;
/// Measurements from the start of one round to the next.
const PERIOD: usize = 8192;
/// Decay factor of the slowdowns of earlier rounds.
const DECAY: f64 = 0.75;
/// Bytes below which a job is not measured: it may run from the caches.
const MIN_BYTES: usize = 1 << 20;
/// Bytes per measurement of a larger job: the LM head runs once per token, and a round should not
/// take a hundred tokens.
const PART_BYTES: usize = 2 << 20;

/// The prefetch tuner of one kind of kernel and shape.
pub(crate) struct PrefetchTuner {
    /// Index of the candidate in use.
    candidate: AtomicUsize,
    trials: Mutex<Trials>,
}

struct Trials {
    /// Measurements since the round began.
    work: usize,
    /// Seconds per byte, by candidate.
    times: [[f64; TRIES]; CANDIDATES.len()],
    /// Decayed slowdown of each candidate against the best of its round. While memory is so slow
    /// that all candidates are alike, what was learned from fast memory still holds.
    slower: [f64; CANDIDATES.len()],
    best: usize,
}

impl Trials {
    /// Whether the next measurement belongs to the exploration phase.
    fn exploring(&self) -> bool {
        self.work < TRIES * CANDIDATES.len()
    }

    /// The candidate for the next measurement. The rotation shifts by one each round trip, so that
    /// every candidate meets every position of a periodic sequence of jobs.
    fn candidate(&self) -> usize {
        if self.exploring() {
            (self.work + self.work / CANDIDATES.len()) % CANDIDATES.len()
        } else {
            self.best
        }
    }

    /// Records a measurement in seconds per byte, and decides at the end of the exploration phase.
    fn record(&mut self, time: f64) {
        let (candidate, explored) = (self.candidate(), self.exploring());
        if explored {
            self.times[candidate][self.work / CANDIDATES.len()] = time;
        }
        self.work = (self.work + 1) % PERIOD;
        if explored && !self.exploring() {
            let middle = |candidate: usize| {
                let mut times = self.times[candidate];
                times.sort_by(f64::total_cmp);
                times[TRIES / 2]
            };
            let middles: [f64; CANDIDATES.len()] = std::array::from_fn(middle);
            let least = middles.into_iter().fold(f64::INFINITY, f64::min);
            for (slower, middle) in self.slower.iter_mut().zip(middles) {
                *slower = *slower * DECAY + middle / least - 1.0;
            }
            let slower = |candidate: &usize| self.slower[*candidate];
            self.best = (0..CANDIDATES.len()).min_by(|a, b| slower(a).total_cmp(&slower(b))).unwrap_or(0);
        }
    }
}

impl PrefetchTuner {
    pub(crate) const fn new() -> Self {
        let trials = Trials {
            work: 0,
            times: [[0.0; TRIES]; CANDIDATES.len()],
            slower: [0.0; CANDIDATES.len()],
            best: 0,
        };
        Self { candidate: AtomicUsize::new(0), trials: Mutex::new(trials) }
    }

    /// The candidate in use.
    #[inline]
    pub(crate) fn distance(&self) -> PrefetchDistance {
        CANDIDATES[self.candidate.load(Ordering::Relaxed)]
    }

    /// Runs `job` over `pieces` items that read `bytes` bytes in all, and measures it. `job`
    /// receives all items at once, or consecutive ranges of them during exploration.
    pub(crate) fn run(&self, bytes: usize, pieces: usize, job: impl Fn(Range<usize>)) {
        if bytes < MIN_BYTES {
            return job(0..pieces);
        }
        // One at a time: a concurrent engine would disturb the measurement, and the candidate must
        // not change during it.
        let mut trials = match self.trials.try_lock() {
            Ok(trials) => trials,
            Err(TryLockError::Poisoned(trials)) => trials.into_inner(),
            Err(TryLockError::WouldBlock) => return job(0..pieces),
        };
        let parts = (bytes / PART_BYTES).clamp(1, pieces.max(1));
        let bound = |part: usize| part * pieces / parts;
        let mut done = 0;
        while done < parts {
            let end = if trials.exploring() { done + 1 } else { parts };
            let started = Instant::now();
            job(bound(done)..bound(end));
            let read = bytes as f64 * (end - done) as f64 / parts as f64;
            trials.record(started.elapsed().as_secs_f64() / read);
            self.candidate.store(trials.candidate(), Ordering::Relaxed);
            done = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Records `pieces` measurements; `time(n, candidate)` gives their values. Returns how often
    /// each candidate was used.
    fn work(
        trials: &mut Trials,
        pieces: usize,
        time: impl Fn(usize, usize) -> f64,
    ) -> [usize; CANDIDATES.len()] {
        let mut gone = [0; CANDIDATES.len()];
        for n in 0..pieces {
            let candidate = trials.candidate();
            gone[candidate] += 1;
            trials.record(time(n, candidate));
        }
        gone
    }

    #[test]
    fn fastest_candidate_is_found_and_found_again() {
        let tuner = PrefetchTuner::new();
        assert_eq!(tuner.distance(), CANDIDATES[0]);
        let mut trials = tuner.trials.into_inner().unwrap();
        // Seven matrix formats in rotation, one of which takes twice as long per byte, and
        // occasional disturbances.
        let disturbed = |n: usize| if n % 11 == 3 { 50.0 } else { 0.0 };
        let of_kind = |n: usize| if n % 7 == 2 { 2.0 } else { 1.0 };
        for fastest in [2, 1, 4, 0, 3] {
            // Earlier rounds count for a while.
            for _ in 0..4 {
                work(&mut trials, PERIOD, |n, candidate| {
                    of_kind(n) * if candidate == fastest { 1.0 } else { 1.05 } + disturbed(n)
                });
            }
            assert_eq!(trials.best, fastest);
            // While all candidates are alike the choice holds.
            for _ in 0..4 {
                let alike =
                    |n, candidate| of_kind(n) * (1.0 + (candidate * 7 + n / PERIOD) as f64 % 5.0 * 1e-4);
                let gone = work(&mut trials, PERIOD, alike);
                assert_eq!(trials.best, fastest);
                assert_eq!(gone.iter().sum::<usize>() - gone[fastest], TRIES * (CANDIDATES.len() - 1));
            }
        }
    }

    #[test]
    fn large_jobs_are_measured_one_at_a_time() {
        let tuner = PrefetchTuner::new();
        let counted = || tuner.trials.try_lock().map_or(usize::MAX, |trials| trials.work);
        let done = Cell::new(0);
        let more = |pieces: Range<usize>| done.set(done.get() + pieces.len());
        tuner.run(MIN_BYTES - 1, 1, more);
        assert_eq!((done.get(), counted()), (1, 0));
        tuner.run(MIN_BYTES, 1, |pieces| {
            more(pieces);
            let candidate = tuner.candidate.load(Ordering::Relaxed);
            // A concurrent engine's job, while this one is measured.
            tuner.run(MIN_BYTES, 1, more);
            assert_eq!(candidate, tuner.candidate.load(Ordering::Relaxed));
        });
        assert_eq!((done.get(), counted()), (3, 1));
        let trials = tuner.trials.try_lock().unwrap();
        assert_eq!(tuner.distance(), CANDIDATES[trials.candidate()]);
        assert!(trials.times[0][0] > 0.0);
    }

    #[test]
    fn one_large_job_tries_all_candidates_then_uses_the_best() {
        let tuner = PrefetchTuner::new();
        let explored = TRIES * CANDIDATES.len();
        let (done, candidates) = (Cell::new(0), RefCell::new(Vec::new()));
        tuner.run((explored + 10) * PART_BYTES, 1000, |pieces| {
            assert_eq!(pieces.start, done.replace(pieces.end));
            candidates.borrow_mut().push(tuner.candidate.load(Ordering::Relaxed));
        });
        assert_eq!(done.get(), 1000);
        let (mut candidates, best) = (candidates.into_inner(), tuner.trials.try_lock().unwrap().best);
        assert_eq!((candidates.len(), candidates.pop()), (explored + 1, Some(best)));
        assert!(
            (0..CANDIDATES.len()).all(|candidate| candidates
                .iter()
                .filter(|explored| **explored == candidate)
                .count()
                == TRIES)
        );
        // A job is never split into more parts than it has items.
        tuner.trials.try_lock().unwrap().work = 0;
        tuner.run(10 * PART_BYTES, 3, |pieces| assert_eq!(pieces.len(), 1));
        tuner.run(10 * PART_BYTES, 0, |pieces| assert!(pieces.is_empty()));
    }

    #[test]
    fn candidates_rotate_over_any_period_of_jobs() {
        for row in 1..=8 {
            let mut at = vec![[0; CANDIDATES.len()]; row];
            let mut trials = PrefetchTuner::new().trials.into_inner().unwrap();
            for n in 0..TRIES * CANDIDATES.len() {
                at[n % row][trials.candidate()] += 1;
                trials.record(1.0);
            }
            assert!(at.as_flattened().iter().all(|&n| n > 0), "{row}: {at:?}");
        }
    }
}
