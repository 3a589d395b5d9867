//! Event log of a response that is generated in the background: its stream events by number, which
//! any number of readers follow while it grows.
//!
//! States: open, closed. An open log grows at its end; a closed one never changes. Its memory
//! counts toward its key until drop.

use crate::session::shared_memory::{HeldBytes, SharedMemory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Maximum bytes of a read, unless one event is longer.
const MAX_READ: usize = 64 << 10;
/// Heap bytes of an event beside its text.
const EVENT: usize = 32;

/// The events of one response.
#[derive(Debug)]
pub(crate) struct EventLog {
    state: Mutex<LogState>,
    /// Notified when the log has changed.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct LogState {
    events: Vec<Box<str>>,
    is_closed: bool,
    bytes: HeldBytes,
}

/// The result of a read from a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LogPart {
    /// Events, and the number of the next.
    Events(String, usize),
    /// The reader has all events; more may come.
    Open,
    /// The reader has all events.
    Closed,
}

impl LogState {
    /// Appends server-sent events, unless the log is closed.
    fn push(&mut self, events: &str) {
        if self.is_closed {
            return;
        }
        for event in events.split_inclusive("\n\n").filter(|event| !event.starts_with(':')) {
            self.bytes.grow(EVENT + event.len());
            self.events.push(event.into());
        }
    }
}

impl EventLog {
    /// An empty log of this key.
    pub(super) fn new(owner: u64, memory: &Arc<SharedMemory>) -> Self {
        let state = LogState { events: Vec::new(), is_closed: false, bytes: memory.hold(owner, 0) };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    /// Appends server-sent events, each of which ends with an empty line. Comments are left out.
    pub(crate) fn push(&self, events: &str) {
        self.lock().push(events);
        self.changed.send_replace(());
    }

    /// Appends the last event, which `event` writes from its number, and closes the log. The log is
    /// locked meanwhile, so no other event gets that number.
    pub(crate) fn end(&self, event: impl FnOnce(usize) -> String) {
        let mut state = self.lock();
        let last = event(state.events.len());
        state.push(&last);
        state.is_closed = true;
        drop(state);
        self.changed.send_replace(());
    }

    /// Closes the log.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.send_replace(());
    }

    /// The events from number `from` on, about [`MAX_READ`] bytes at most.
    pub(crate) fn read(&self, from: usize) -> LogPart {
        let state = self.lock();
        let mut text = String::new();
        let mut next = from;
        while let Some(event) =
            state.events.get(next).filter(|event| text.is_empty() || text.len() + event.len() <= MAX_READ)
        {
            text.push_str(event);
            next += 1;
        }
        match next {
            _ if next > from => LogPart::Events(text, next),
            _ if state.is_closed => LogPart::Closed,
            _ => LogPart::Open,
        }
    }

    /// Notifies of changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    #[test]
    fn events_keep_their_numbers() {
        let memory = Arc::<SharedMemory>::default();
        let log = EventLog::new(1, &memory);
        assert_eq!(log.read(0), LogPart::Open);
        log.push("event: a\ndata: 1\n\nevent: b\ndata: 2\n\n");
        log.push(": keep-alive\n\n");
        assert_eq!(log.read(1), LogPart::Events("event: b\ndata: 2\n\n".into(), 2));
        assert_eq!((log.read(2), log.read(9)), (LogPart::Open, LogPart::Open));
        log.end(|number| format!("data: {number}\n\n"));
        assert_eq!(log.read(2), LogPart::Events("data: 2\n\n".into(), 3));
        log.push("data: late\n\n");
        assert_eq!(log.read(3), LogPart::Closed);
        assert!(memory.total() > 0);
        drop(log);
        assert_eq!(memory.total(), 0);
    }

    #[test]
    fn the_last_event_shares_its_number_with_no_other() {
        let log = EventLog::new(1, &Arc::default());
        thread::scope(|scope| {
            log.end(|number| {
                scope.spawn(|| log.push("data: 0\n\n"));
                // Long enough for the other thread to append, unless the log is locked.
                thread::sleep(Duration::from_millis(50));
                format!("data: {number}\n\n")
            });
        });
        assert_eq!(log.read(0), LogPart::Events("data: 0\n\n".into(), 1));
        assert_eq!(log.read(1), LogPart::Closed);
    }

    #[test]
    fn long_logs_are_read_in_parts() {
        let log = EventLog::new(1, &Arc::default());
        let event = format!("data: {}\n\n", "x".repeat(MAX_READ / 2));
        (0..3).for_each(|_| log.push(&event));
        let LogPart::Events(text, next) = log.read(0) else { panic!("no events") };
        assert_eq!((text.len(), next), (event.len(), 1));
    }
}
