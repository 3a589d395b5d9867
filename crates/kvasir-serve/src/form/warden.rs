use super::helper::locked;
use llguidance::{CancellationHandle, Matcher};
use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

/// How often it is looked at who is still at work.
const EVERY: Duration = Duration::from_millis(100);
/// Work that is seen so often is ended. Looks are counted, not time, so that a machine which stands still ends nobody's work.
const LOOKS: u32 = 30;

/// Ends work that takes seconds where it takes well under a millisecond: text that a form forces is worked out to its end, and a
/// form may be written that has none.
///
/// Its thread is there while somebody is looked after.
#[derive(Clone, Default)]
pub(super) struct Warden(Arc<Mutex<Wards>>);

#[derive(Default)]
struct Wards {
    list: Vec<Weak<Ward>>,
    has_thread: bool,
}

struct Ward {
    handle: CancellationHandle,
    /// How often its work of now was seen, and one; 0 while there is none.
    seen: AtomicU32,
}

/// A matcher whose work ends in time.
pub(super) struct Watched {
    matcher: Matcher,
    ward: Arc<Ward>,
}

impl Warden {
    /// Looks after a matcher from now on.
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

/// Looks once at all, after a while. False when nobody is left.
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
            // What has ended meanwhile stays at 0.
            let _ = self.seen.compare_exchange(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Watched {
    /// Work that is ended where it takes too long; the matcher is of no use then.
    pub(super) fn work<T>(&mut self, work: impl FnOnce(&mut Matcher) -> T) -> T {
        self.ward.seen.store(1, Ordering::Relaxed);
        let done = work(&mut self.matcher);
        self.ward.seen.store(0, Ordering::Relaxed);
        done
    }

    /// The matcher, for what is done at once.
    pub(super) fn matcher(&self) -> &Matcher {
        &self.matcher
    }
}
