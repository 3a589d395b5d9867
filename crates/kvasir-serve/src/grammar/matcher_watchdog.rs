//! Watchdog of grammar matchers: cancels work that takes seconds instead of well under a
//! millisecond.
//!
//! A matcher expands forced text to its end, and a hostile grammar may have none.
//!
//! Algorithm: `WatchedMatcher::work` sets a counter to 1 and back to 0 when done. A thread polls
//! every 100 ms and increments non-zero counters; after 30 polls it cancels the matcher. The
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
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Polls after which work is canceled. Polls are counted, not time, so a suspended VM does not
/// cancel work.
const MAX_POLLS: u32 = 30;

/// Cancels matcher work that takes seconds. Its thread runs only while matchers exist.
#[derive(Clone, Default)]
pub(crate) struct MatcherWatchdog(Arc<Mutex<WatchList>>);

#[derive(Default)]
struct WatchList {
    list: Vec<Weak<WatchedWork>>,
    has_thread: bool,
}

struct WatchedWork {
    handle: CancellationHandle,
    /// Polls of the current work, plus one; 0 while idle.
    polls: AtomicU32,
}

/// A matcher whose work is bounded in time.
pub(crate) struct WatchedMatcher {
    matcher: Matcher,
    work_state: Arc<WatchedWork>,
}

impl MatcherWatchdog {
    /// Registers a matcher, and starts the thread if needed.
    pub(super) fn watch(&self, matcher: Matcher) -> WatchedMatcher {
        let matcher = matcher.into_cancellable();
        let handle = matcher.cancellation_handle().unwrap_or_default();
        let work_state = Arc::new(WatchedWork { handle, polls: AtomicU32::new(0) });
        let mut watch_list = locked(&self.0);
        watch_list.list.push(Arc::downgrade(&work_state));
        if !watch_list.has_thread {
            let all = self.0.clone();
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
        if polls > MAX_POLLS {
            self.handle.cancel();
        } else if polls > 0 {
            // Work that has ended meanwhile stays at 0.
            let _ = self.polls.compare_exchange(polls, polls + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl WatchedMatcher {
    /// Runs `work` under the time limit. After a cancellation, the matcher is in an error state.
    pub(super) fn work<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
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
