//! Watchdog of grammar matchers: cancels work that takes seconds instead of well under a
//! millisecond, and all work of a request that has used up its budget or is canceled.
//!
//! A matcher expands forced text to its end, and a hostile grammar may have none. An ambiguous one may
//! take a fraction of a second for every mask.
//!
//! Algorithm: `WatchedMatcher::work` sets a counter to 1 and back to 0 when done. A thread polls
//! every 100 ms and increments non-zero counters; after 30 polls it cancels the matcher. Each such
//! poll also counts toward the request's [`WorkBudget`]: [`MAX_REQUEST_POLLS`], and one more for
//! [`CALLS_PER_POLL`] calls of `work`, so that long answers have time for all their masks. The
//! watchdog counts polls, not time, so a suspended VM does not cancel work. The thread exits when
//! no matcher is left.
//!
//! Ordering: all accesses are `Relaxed`; a counter publishes no other data. The increment is a
//! compare-exchange, so it cannot overwrite the reset to 0. A cancellation that races with the end
//! of work at worst ends a matcher that ran for seconds.

use crate::grammar::mask_threads::locked;
use llguidance::{CancellationHandle, Matcher};
use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Polls after which work is canceled. Polls are counted, not time, so a suspended VM does not
/// cancel work.
const MAX_POLLS: u32 = 30;

/// Polls of matchers at work that a request has for compilation and masks together: five seconds.
const MAX_REQUEST_POLLS: u32 = 50;
/// Calls of `work` that extend a request's budget by one poll: a mask may take five milliseconds.
const CALLS_PER_POLL: u32 = 20;

/// Cancels matcher work that takes seconds. Its thread runs only while matchers exist. Matchers of one
/// value share a budget.
#[derive(Clone, Default)]
pub(crate) struct MatcherWatchdog {
    watch_list: Arc<Mutex<WatchList>>,
    budget: Arc<WorkBudget>,
}

/// Matcher work of one request.
#[derive(Default)]
struct WorkBudget {
    /// Polls that found a matcher of the request at work.
    polls: AtomicU32,
    /// Calls of `work`.
    calls: AtomicU32,
    /// Set when the request is canceled.
    canceled: Arc<AtomicBool>,
}

impl WorkBudget {
    fn is_spent(&self) -> bool {
        let most = MAX_REQUEST_POLLS + self.calls.load(Ordering::Relaxed) / CALLS_PER_POLL;
        self.canceled.load(Ordering::Relaxed) || self.polls.load(Ordering::Relaxed) > most
    }
}

#[derive(Default)]
struct WatchList {
    list: Vec<Weak<WatchedWork>>,
    has_thread: bool,
}

struct WatchedWork {
    handle: CancellationHandle,
    budget: Arc<WorkBudget>,
    /// Polls of the current work, plus one; 0 while idle.
    polls: AtomicU32,
}

/// A matcher whose work is bounded in time.
pub(crate) struct WatchedMatcher {
    matcher: Matcher,
    work_state: Arc<WatchedWork>,
}

impl MatcherWatchdog {
    /// A watchdog with a new budget. Setting `canceled` cancels all work of the request.
    pub(super) fn for_request(&self, canceled: &Arc<AtomicBool>) -> Self {
        let canceled = canceled.clone();
        let budget = Arc::new(WorkBudget { canceled, ..WorkBudget::default() });
        Self { watch_list: self.watch_list.clone(), budget }
    }

    /// Registers a matcher, and starts the thread if needed.
    pub(super) fn watch(&self, matcher: Matcher) -> WatchedMatcher {
        let matcher = matcher.into_cancellable();
        let handle = matcher.cancellation_handle().unwrap_or_default();
        let (budget, polls) = (self.budget.clone(), AtomicU32::new(0));
        let work_state = Arc::new(WatchedWork { handle, budget, polls });
        let mut watch_list = locked(&self.watch_list);
        watch_list.list.push(Arc::downgrade(&work_state));
        if !watch_list.has_thread {
            let all = self.watch_list.clone();
            let thread = thread::Builder::new().name("forms-in-time".into());
            watch_list.has_thread = thread.spawn(move || while poll(&all) {}).is_ok();
        }
        WatchedMatcher { matcher, work_state }
    }
}

/// One poll of all matchers, after `POLL_INTERVAL`. False when none is left.
fn poll(watch_list: &Mutex<WatchList>) -> bool {
    thread::sleep(POLL_INTERVAL);
    let mut watch_list = locked(watch_list);
    watch_list
        .list
        .retain(|work_state| work_state.upgrade().inspect(|work_state| work_state.poll()).is_some());
    watch_list.has_thread = !watch_list.list.is_empty();
    watch_list.has_thread
}

impl WatchedWork {
    fn poll(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        if polls == 0 {
            return;
        }
        self.budget.polls.fetch_add(1, Ordering::Relaxed);
        if polls > MAX_POLLS || self.budget.is_spent() {
            self.handle.cancel();
        } else {
            // Work that has ended meanwhile stays at 0.
            let _ = self.polls.compare_exchange(polls, polls + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl WatchedMatcher {
    /// Runs `work` under the time limit. After a cancellation, the matcher is in an error state.
    pub(super) fn work<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        self.work_state.budget.calls.fetch_add(1, Ordering::Relaxed);
        self.work_state.polls.store(1, Ordering::Relaxed);
        let done = work(&mut self.matcher);
        self.work_state.polls.store(0, Ordering::Relaxed);
        done
    }

    /// The matcher, for calls that need no time limit.
    pub(super) fn matcher(&self) -> &Matcher {
        &self.matcher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(budget: &Arc<WorkBudget>) -> WatchedWork {
        let (handle, budget) = (CancellationHandle::default(), budget.clone());
        WatchedWork { handle, budget, polls: AtomicU32::new(1) }
    }

    #[test]
    fn matchers_of_a_request_share_its_budget() {
        let budget = Arc::<WorkBudget>::default();
        let (one, other) = (work(&budget), work(&budget));
        let poll = |work: &WatchedWork| {
            // Each mask is fast enough by itself.
            work.polls.store(1, Ordering::Relaxed);
            work.poll();
            work.handle.is_cancelled()
        };
        for _ in 0..MAX_REQUEST_POLLS / 2 {
            assert!(!poll(&one) && !poll(&other));
        }
        assert!(poll(&one) && poll(&other));
    }

    #[test]
    fn masks_extend_the_budget_of_long_answers() {
        let budget = Arc::<WorkBudget>::default();
        budget.polls.store(MAX_REQUEST_POLLS + 5, Ordering::Relaxed);
        assert!(budget.is_spent());
        budget.calls.store(5 * CALLS_PER_POLL, Ordering::Relaxed);
        assert!(!budget.is_spent());
        budget.canceled.store(true, Ordering::Relaxed);
        assert!(budget.is_spent(), "the client has left");
    }

    #[test]
    fn idle_matchers_count_toward_nothing() {
        let budget = Arc::<WorkBudget>::default();
        let idle = work(&budget);
        idle.polls.store(0, Ordering::Relaxed);
        idle.poll();
        assert_eq!(budget.polls.load(Ordering::Relaxed), 0);
    }
}
