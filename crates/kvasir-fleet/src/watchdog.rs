//! `Watchdog`: detects workers that have open requests and complete no step.
//!
//! It counts polls, not time, so a suspended front kills no worker: after it resumes, it polls
//! once, and the queued messages of the workers reset their counts before the next poll.

use std::time::Duration;
use tokio::time::Instant;

/// Minimum timeout: workers report their steps once per second.
const MIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum interval between polls.
const MAX_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of polls within the timeout.
const MIN_POLLS: u32 = 8;

/// Reported steps of a worker, and polls since its last progress.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    steps: u64,
    stalled_polls: u32,
}

/// Counts the polls in which each worker made no progress.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    workers: Vec<Progress>,
    interval: Duration,
    max_polls: u32,
    next_poll: Option<Instant>,
}

impl Watchdog {
    /// A watchdog of `replicas` workers that reports those without progress for `timeout`.
    pub(crate) fn new(replicas: usize, timeout: Duration) -> Self {
        let timeout = timeout.max(MIN_TIMEOUT);
        let interval = (timeout / MIN_POLLS).min(MAX_INTERVAL);
        let max_polls = timeout.as_nanos().div_ceil(interval.as_nanos());
        let max_polls = u32::try_from(max_polls).unwrap_or(u32::MAX);
        Self { workers: vec![Progress::default(); replicas], interval, max_polls, next_poll: None }
    }

    /// A worker has connected or delivered results.
    pub(crate) fn record_progress(&mut self, replica: usize) {
        self.workers[replica].stalled_polls = 0;
    }

    /// A worker has reported its number of steps. `is_building`: all of its requests still wait for
    /// their constraints to be built, which counts as progress.
    pub(crate) fn record_steps(&mut self, replica: usize, steps: u64, is_building: bool) {
        let worker = &mut self.workers[replica];
        if worker.steps != steps || is_building {
            *worker = Progress { steps, stalled_polls: 0 };
        }
    }

    /// When the next poll is due; `None` while no worker has requests.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next_poll
    }

    /// Schedules polls while any worker has requests.
    pub(crate) fn arm(&mut self, any_has_work: bool, now: Instant) {
        if !any_has_work {
            self.next_poll = None;
        } else if self.next_poll.is_none() {
            self.next_poll = Some(now + self.interval);
        }
    }

    /// Polls if a poll is due. Returns the workers that had work and made no progress for the
    /// timeout.
    pub(crate) fn poll(&mut self, now: Instant, has_work: impl Fn(usize) -> bool) -> Vec<usize> {
        if self.next_poll.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.next_poll = Some(now + self.interval);
        let mut hung = Vec::new();
        for (replica, worker) in self.workers.iter_mut().enumerate() {
            worker.stalled_polls = if has_work(replica) { worker.stalled_polls + 1 } else { 0 };
            if worker.stalled_polls >= self.max_polls {
                worker.stalled_polls = 0;
                hung.push(replica);
            }
        }
        hung
    }

    /// The timeout in seconds.
    pub(crate) fn timeout_seconds(&self) -> f64 {
        (self.interval * self.max_polls).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls a watchdog of three workers for `seconds`; worker 0 makes steps, worker 1 none, and
    /// worker 2 has no work.
    fn hung(watchdog: &mut Watchdog, seconds: u64) -> Vec<usize> {
        let mut now = Instant::now();
        let mut hung = Vec::new();
        for second in 0..seconds {
            watchdog.record_steps(0, second, false);
            watchdog.record_steps(1, 5, false);
            watchdog.record_steps(2, 5, false);
            watchdog.arm(true, now);
            now = watchdog.due().unwrap();
            hung.extend(watchdog.poll(now, |replica| replica < 2));
        }
        hung
    }

    #[test]
    fn only_a_worker_with_work_and_without_steps_is_hung() {
        let mut watchdog = Watchdog::new(3, Duration::from_secs(20));
        assert!(hung(&mut watchdog, 19).is_empty());
        assert_eq!(hung(&mut watchdog, 2), [1]);
        assert!(hung(&mut watchdog, 18).is_empty());
        watchdog.record_progress(1);
        assert!(hung(&mut watchdog, 19).is_empty());
        watchdog.record_steps(1, 5, true);
        assert!(hung(&mut watchdog, 19).is_empty());
        watchdog.arm(false, Instant::now());
        assert_eq!(watchdog.due(), None);
    }

    #[test]
    fn a_suspended_front_polls_once() {
        let mut watchdog = Watchdog::new(1, Duration::from_secs(20));
        let now = Instant::now();
        watchdog.arm(true, now);
        assert!(watchdog.poll(now, |_| true).is_empty(), "not due");
        assert!(watchdog.poll(now + Duration::from_secs(1000), |_| true).is_empty());
        assert!(watchdog.poll(now + Duration::from_secs(1000), |_| true).is_empty(), "not due");
    }

    #[test]
    fn the_longest_timeout_does_not_overflow() {
        let watchdog = Watchdog::new(1, Duration::MAX);
        assert_eq!(watchdog.max_polls, u32::MAX);
        assert_eq!(Watchdog::new(1, Duration::from_secs(1)).timeout_seconds(), 3.0);
    }
}
