//! How far ahead of a kernel that reads each line once memory is asked for. Processors differ in what they foresee by themselves and in how many lines a core
//! can wait for, and a machine's memory in how fast it is from one minute to the next: so the ways are tried in turns while work is done, and the fastest is
//! kept for a while. No result depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Instant;

/// How many bytes ahead memory is asked for, into the second level and into the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ahead {
    pub(crate) far: Option<usize>,
    pub(crate) near: Option<usize>,
}

/// The first is in force until something was tried. Bytes past what is read are usually read next.
const WAYS: [Ahead; 5] = [
    // Best on Intel's server processors: inside a small page, where that also sets their own foresight going, and once more just before use.
    Ahead { far: Some(3584), near: Some(256) },
    // Best of those tried on AMD's.
    Ahead { far: Some(8192), near: None },
    Ahead { far: Some(8192), near: Some(512) },
    Ahead { far: None, near: Some(2048) },
    // Who asks waits, too: some processors foresee a plain row of lines better.
    Ahead { far: None, near: None },
];
/// Pieces of work that each way is tried on. The median counts: some are disturbed.
const TRIES: usize = 21;
/// Pieces of work from one round of trials to the next.
const PERIOD: usize = 8192;
/// Bytes from which on a piece of work says something about memory.
const ENOUGH: usize = 1 << 20;

/// What was found out about one kind of work.
pub(crate) struct Asking {
    /// The way in force.
    way: AtomicUsize,
    trials: Mutex<Trials>,
}

struct Trials {
    /// Pieces of work since the round began.
    work: usize,
    /// Times for a byte, of each way.
    times: [[f64; TRIES]; WAYS.len()],
    best: usize,
}

impl Trials {
    /// The way that the next piece of work goes. Ways take turns at each place of a row of works that comes again and again.
    fn way(&self) -> usize {
        match self.work < TRIES * WAYS.len() {
            true => (self.work + self.work / WAYS.len()) % WAYS.len(),
            false => self.best,
        }
    }

    /// A piece of work took so long for each byte.
    fn note(&mut self, time: f64) {
        let (way, tried) = (self.way(), TRIES * WAYS.len());
        if self.work < tried {
            self.times[way][self.work / WAYS.len()] = time;
        }
        self.work = (self.work + 1) % PERIOD;
        if self.work == tried {
            let middle = |way: usize| {
                let mut times = self.times[way];
                times.sort_by(f64::total_cmp);
                times[TRIES / 2]
            };
            self.best = (0..WAYS.len()).min_by(|a, b| middle(*a).total_cmp(&middle(*b))).unwrap_or(0);
        }
    }
}

impl Asking {
    pub(crate) const fn new() -> Self {
        let trials = Trials { work: 0, times: [[0.0; TRIES]; WAYS.len()], best: 0 };
        Self { way: AtomicUsize::new(0), trials: Mutex::new(trials) }
    }

    /// The way in force.
    #[inline]
    pub(crate) fn ahead(&self) -> Ahead {
        WAYS[self.way.load(Ordering::Relaxed)]
    }

    /// Does a piece of work that reads so many bytes, in the way whose turn it is.
    pub(crate) fn work(&self, bytes: usize, job: impl FnOnce()) {
        if bytes < ENOUGH {
            return job();
        }
        // One at a time: what another engine's work takes says nothing, and its way must not change meanwhile.
        let mut trials = match self.trials.try_lock() {
            Ok(trials) => trials,
            Err(TryLockError::Poisoned(trials)) => trials.into_inner(),
            Err(TryLockError::WouldBlock) => return job(),
        };
        let started = Instant::now();
        job();
        trials.note(started.elapsed().as_secs_f64() / bytes as f64);
        self.way.store(trials.way(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does so many pieces of work; `time` says how long one takes in a way. Returns how often each way was gone.
    fn work(trials: &mut Trials, pieces: usize, time: impl Fn(usize, usize) -> f64) -> [usize; WAYS.len()] {
        let mut gone = [0; WAYS.len()];
        for n in 0..pieces {
            let way = trials.way();
            gone[way] += 1;
            trials.note(time(n, way));
        }
        gone
    }

    #[test]
    fn the_fastest_way_is_found_and_found_anew() {
        let asking = Asking::new();
        assert_eq!(asking.ahead(), WAYS[0]);
        let mut trials = asking.trials.into_inner().unwrap();
        // Matrices of seven kinds in turns, of which one takes twice as long for a byte, and now and then a disturbance.
        let disturbed = |n: usize| if n % 11 == 3 { 50.0 } else { 0.0 };
        let of_kind = |n: usize| if n % 7 == 2 { 2.0 } else { 1.0 };
        for (period, fastest) in [2, 1, 1, 4, 0, 3].into_iter().enumerate() {
            let gone = work(&mut trials, PERIOD, |n, way| {
                of_kind(n) * if way == fastest { 1.0 } else { 1.05 } + disturbed(n)
            });
            assert_eq!(trials.best, fastest, "{period}");
            assert_eq!(gone.iter().sum::<usize>() - gone[fastest], TRIES * (WAYS.len() - 1), "{period}");
        }
    }

    #[test]
    fn work_is_done_and_counts_if_it_is_much_and_nobody_elses_counts() {
        let asking = Asking::new();
        let counted = || asking.trials.try_lock().map_or(usize::MAX, |trials| trials.work);
        let mut done = 0;
        asking.work(ENOUGH - 1, || done += 1);
        assert_eq!((done, counted()), (1, 0));
        asking.work(ENOUGH, || {
            done += 1;
            let way = asking.way.load(Ordering::Relaxed);
            // Another engine's, while this one's is measured.
            asking.work(ENOUGH, || done += 1);
            assert_eq!(way, asking.way.load(Ordering::Relaxed));
        });
        assert_eq!((done, counted()), (3, 1));
        let trials = asking.trials.try_lock().unwrap();
        assert_eq!(asking.ahead(), WAYS[trials.way()]);
        assert!(trials.times[0][0] > 0.0);
    }

    #[test]
    fn ways_take_turns_whatever_the_row_of_works_is() {
        for row in 1..=8 {
            let mut at = vec![[0; WAYS.len()]; row];
            let mut trials = Asking::new().trials.into_inner().unwrap();
            for n in 0..TRIES * WAYS.len() {
                at[n % row][trials.way()] += 1;
                trials.note(1.0);
            }
            assert!(at.as_flattened().iter().all(|&n| n > 0), "{row}: {at:?}");
        }
    }
}
