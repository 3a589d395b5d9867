//! How far ahead of a kernel that reads each line once memory is asked for. Processors differ in what they foresee by themselves and in how many lines a core
//! can wait for, and a machine's memory in how fast it is from one minute to the next: so the ways are tried in turns while work is done, and the fastest is
//! kept for a while. No result depends on it.

use crate::ask::{Near, PAGE, ask_line};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Instant;

/// How memory is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ahead {
    /// How many bytes ahead, into the second level.
    far: usize,
    /// Of each page only what begins it is asked for so far ahead: lines that are asked for at once, if the first is among so many bytes.
    of_page: usize,
    /// How many bytes ahead, into the first level.
    near: Option<usize>,
}

/// The first is in force until something was tried. Bytes past what is read are usually read next.
const WAYS: [Ahead; 5] = [
    // Best on Intel's server processors: inside a small page, where that also sets their own foresight going, and once more just before use.
    Ahead { far: 3584, of_page: PAGE, near: Some(256) },
    // On AMD's whoever asks waits for one of few places, and what the processor foresees has more of them: best is a sign that the next page is wanted, too.
    Ahead { far: PAGE, of_page: 512, near: None },
    Ahead { far: PAGE, of_page: 512, near: Some(256) },
    // Where lines are not read in order, as fifth bits are not, asking puts them in order.
    Ahead { far: 2 * PAGE, of_page: 512, near: Some(2048) },
    Ahead { far: 2 * PAGE, of_page: PAGE, near: None },
];

impl Ahead {
    /// Asks for what lies ahead of so many lines. How is asked once for all of them: a branch for each would take a tenth of a kernel's time.
    #[inline(always)]
    pub(crate) fn ask(self, from: *const u8, lines: usize) {
        let lines = |ahead: usize| (0..lines).map(move |line| from.wrapping_add(ahead + line * 64));
        if let Some(near) = self.near {
            lines(near).for_each(|line| ask_line(Near::First, line));
        }
        if (from as usize).wrapping_add(self.far) % PAGE < self.of_page {
            lines(self.far).for_each(|line| ask_line(Near::Second, line));
        }
    }
}

/// Works that each way is tried on. The median counts: some are disturbed.
const TRIES: usize = 21;
/// Works from one round of trials to the next.
const PERIOD: usize = 8192;
/// How much of what was found counts a round later.
const KEPT: f64 = 0.75;
/// Bytes from which on a work says something about memory.
const ENOUGH: usize = 1 << 20;
/// Bytes of a part, where ways are tried on larger works: a head is met once per token, and a round should not take a hundred.
const PART: usize = 2 << 20;

/// What was found out about one kind of work.
pub(crate) struct Asking {
    /// The way in force.
    way: AtomicUsize,
    trials: Mutex<Trials>,
}

struct Trials {
    /// Works since the round began.
    work: usize,
    /// Times for a byte, of each way.
    times: [[f64; TRIES]; WAYS.len()],
    /// How much slower than the best of a round each way was, what is long ago counting less: where memory is so slow that all ways are alike, what was found
    /// while it was fast still holds.
    slower: [f64; WAYS.len()],
    best: usize,
}

impl Trials {
    /// Whether the next work is one of those that ways are tried on.
    fn trying(&self) -> bool {
        self.work < TRIES * WAYS.len()
    }

    /// The way that the next work goes. Ways take turns at each place of a row of works that comes again and again.
    fn way(&self) -> usize {
        match self.trying() {
            true => (self.work + self.work / WAYS.len()) % WAYS.len(),
            false => self.best,
        }
    }

    /// A work took so long for each byte.
    fn note(&mut self, time: f64) {
        let (way, tried) = (self.way(), self.trying());
        if tried {
            self.times[way][self.work / WAYS.len()] = time;
        }
        self.work = (self.work + 1) % PERIOD;
        if tried && !self.trying() {
            let middle = |way: usize| {
                let mut times = self.times[way];
                times.sort_by(f64::total_cmp);
                times[TRIES / 2]
            };
            let middles: [f64; WAYS.len()] = std::array::from_fn(middle);
            let least = middles.into_iter().fold(f64::INFINITY, f64::min);
            for (slower, middle) in self.slower.iter_mut().zip(middles) {
                *slower = *slower * KEPT + middle / least - 1.0;
            }
            let slower = |way: &usize| self.slower[*way];
            self.best = (0..WAYS.len()).min_by(|a, b| slower(a).total_cmp(&slower(b))).unwrap_or(0);
        }
    }
}

impl Asking {
    pub(crate) const fn new() -> Self {
        let trials =
            Trials { work: 0, times: [[0.0; TRIES]; WAYS.len()], slower: [0.0; WAYS.len()], best: 0 };
        Self { way: AtomicUsize::new(0), trials: Mutex::new(trials) }
    }

    /// The way in force.
    #[inline]
    pub(crate) fn ahead(&self) -> Ahead {
        WAYS[self.way.load(Ordering::Relaxed)]
    }

    /// Does work of so many pieces, which read so many bytes, in the way whose turn it is. `job` is handed all pieces, or, while ways are tried, some after the
    /// others.
    pub(crate) fn work(&self, bytes: usize, pieces: usize, job: impl Fn(Range<usize>)) {
        if bytes < ENOUGH {
            return job(0..pieces);
        }
        // One at a time: what another engine's work takes says nothing, and its way must not change meanwhile.
        let mut trials = match self.trials.try_lock() {
            Ok(trials) => trials,
            Err(TryLockError::Poisoned(trials)) => trials.into_inner(),
            Err(TryLockError::WouldBlock) => return job(0..pieces),
        };
        let parts = (bytes / PART).clamp(1, pieces.max(1));
        let bound = |part: usize| part * pieces / parts;
        let mut done = 0;
        while done < parts {
            let end = if trials.trying() { done + 1 } else { parts };
            let started = Instant::now();
            job(bound(done)..bound(end));
            let read = bytes as f64 * (end - done) as f64 / parts as f64;
            trials.note(started.elapsed().as_secs_f64() / read);
            self.way.store(trials.way(), Ordering::Relaxed);
            done = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Does so many works; `time` says how long one takes in a way. Returns how often each way was gone.
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
        for fastest in [2, 1, 4, 0, 3] {
            // What was found before counts for a while.
            for _ in 0..4 {
                work(&mut trials, PERIOD, |n, way| {
                    of_kind(n) * if way == fastest { 1.0 } else { 1.05 } + disturbed(n)
                });
            }
            assert_eq!(trials.best, fastest);
            // While all are alike it still holds.
            for _ in 0..4 {
                let alike = |n, way| of_kind(n) * (1.0 + (way * 7 + n / PERIOD) as f64 % 5.0 * 1e-4);
                let gone = work(&mut trials, PERIOD, alike);
                assert_eq!(trials.best, fastest);
                assert_eq!(gone.iter().sum::<usize>() - gone[fastest], TRIES * (WAYS.len() - 1));
            }
        }
    }

    #[test]
    fn work_is_done_and_counts_if_it_is_much_and_nobody_elses_counts() {
        let asking = Asking::new();
        let counted = || asking.trials.try_lock().map_or(usize::MAX, |trials| trials.work);
        let done = Cell::new(0);
        let more = |pieces: Range<usize>| done.set(done.get() + pieces.len());
        asking.work(ENOUGH - 1, 1, more);
        assert_eq!((done.get(), counted()), (1, 0));
        asking.work(ENOUGH, 1, |pieces| {
            more(pieces);
            let way = asking.way.load(Ordering::Relaxed);
            // Another engine's, while this one's is measured.
            asking.work(ENOUGH, 1, more);
            assert_eq!(way, asking.way.load(Ordering::Relaxed));
        });
        assert_eq!((done.get(), counted()), (3, 1));
        let trials = asking.trials.try_lock().unwrap();
        assert_eq!(asking.ahead(), WAYS[trials.way()]);
        assert!(trials.times[0][0] > 0.0);
    }

    #[test]
    fn all_ways_are_tried_on_parts_of_one_large_work_and_the_rest_goes_the_best() {
        let asking = Asking::new();
        let tried = TRIES * WAYS.len();
        let (done, ways) = (Cell::new(0), RefCell::new(Vec::new()));
        asking.work((tried + 10) * PART, 1000, |pieces| {
            assert_eq!(pieces.start, done.replace(pieces.end));
            ways.borrow_mut().push(asking.way.load(Ordering::Relaxed));
        });
        assert_eq!(done.get(), 1000);
        let (mut ways, best) = (ways.into_inner(), asking.trials.try_lock().unwrap().best);
        assert_eq!((ways.len(), ways.pop()), (tried + 1, Some(best)));
        assert!((0..WAYS.len()).all(|way| ways.iter().filter(|tried| **tried == way).count() == TRIES));
        // Few pieces are few parts.
        asking.trials.try_lock().unwrap().work = 0;
        asking.work(10 * PART, 3, |pieces| assert_eq!(pieces.len(), 1));
        asking.work(10 * PART, 0, |pieces| assert!(pieces.is_empty()));
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
