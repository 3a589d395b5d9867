//! Watchdog of grammar matchers: cancels work that takes seconds instead of well under a
//! millisecond.
//!
//! A matcher expands forced text to its end, and a hostile grammar may have none.
//!
//! Algorithm: `Watched::work` sets a counter to 1 and back to 0 when done. A thread polls every 100
//! ms and increments non-zero counters; after 30 polls it cancels the matcher. The watchdog counts
//! polls, not time, so a suspended VM does not cancel work. The thread exits when no matcher is
//! left.
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
const EVERY: Duration = Duration::from_millis(100);
/// Polls after which work is cancelled. Polls are counted, not time, so a suspended VM does not
/// cancel work.
const LOOKS: u32 = 30;

/// Cancels matcher work that takes seconds. Its thread runs only while matchers exist.
#[derive(Clone, Default)]
pub(crate) struct MatcherWatchdog(Arc<Mutex<Wards>>);

#[derive(Default)]
struct Wards {
    list: Vec<Weak<Ward>>,
    has_thread: bool,
}

struct Ward {
    handle: CancellationHandle,
    /// Polls of the current work, plus one; 0 while idle.
    seen: AtomicU32,
}

/// A matcher whose work is bounded in time.
pub(crate) struct Watched {
    matcher: Matcher,
    ward: Arc<Ward>,
}

impl MatcherWatchdog {
    /// Registers a matcher, and starts the thread if needed.
    pub(super) fn watch(&self, matcher: Matcher) -> Watched {
        let matcher = matcher.into_cancellable();
        let handle = matcher.cancellation_handle().unwrap_or_default();
        let ward = Arc::new(Ward { handle, seen: AtomicU32::new(0) });
        let mut wards = locked(&self.0);
        wards.list.push(Arc::downgrade(&ward));
        if !wards.has_thread {
            let all = self.0.clone();
            let thread = thread::Builder::new().name("forms-in-time".into());
            wards.has_thread = thread.spawn(move || while look(&all) {}).is_ok();
        }
        Watched { matcher, ward }
    }
}

/// One poll of all matchers, after `EVERY`. False when none is left.
fn look(wards: &Mutex<Wards>) -> bool {
    thread::sleep(EVERY);
    let mut wards = locked(wards);
    wards.list.retain(|ward| ward.upgrade().inspect(|ward| ward.look()).is_some());
    wards.has_thread = !wards.list.is_empty();
    wards.has_thread
}

impl Ward {
    fn look(&self) {
        let seen = self.seen.load(Ordering::Relaxed);
        if seen > LOOKS {
            self.handle.cancel();
        } else if seen > 0 {
            // Work that has ended meanwhile stays at 0.
            let _ = self.seen.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Watched {
    /// Runs `work` under the time limit. After a cancellation, the matcher is in an error state.
    pub(super) fn work<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        self.ward.seen.store(1, Ordering::Relaxed);
        let done = work(&mut self.matcher);
        self.ward.seen.store(0, Ordering::Relaxed);
        done
    }

    /// The matcher, for calls that need no time limit.
    pub(super) fn matcher(&self) -> &Matcher {
        &self.matcher
    }
}
