//! Live step subscriptions: each subscriber receives a trace of every engine step through a bounded
//! queue.
//!
//! Backpressure: a subscriber whose queue is full misses steps, and restarts with a `Begin` event
//! and a full snapshot once half its queue is read. A slow subscriber never delays the engine; each
//! one costs the engine's thread one record per step. `tests/watch.rs` guards this.

use crate::error::ApiError;
use kvasir_engine::{Core, Nanos, Observer, StepTrace, TraceSink, Tracer};
use kvasir_exec::{Step, StepError};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// Queue capacity per subscriber, in steps; a subscriber further behind misses some.
const BACKLOG: usize = 1024;

/// Maximum number of subscribers.
const MAX_WATCHING: usize = 16;

/// An event of a subscription.
#[derive(Clone, Debug, PartialEq)]
pub enum Sight {
    /// A new snapshot follows: the next step describes all live requests.
    Begin,
    /// A step.
    Step(Box<StepTrace>),
}

/// Handle to subscribe.
#[derive(Clone)]
pub struct Watch {
    door: mpsc::Sender<Watcher>,
    watching: Arc<AtomicUsize>,
}

/// A subscription: events in order. Dropping it unsubscribes.
pub struct Sights {
    sights: Receiver<Sight>,
    watching: Arc<AtomicUsize>,
}

impl Watch {
    /// A subscription handle, and the observer that must be installed in the engine.
    pub fn new() -> (Self, Box<dyn Observer>) {
        let (door, newcomers) = mpsc::channel();
        let watch = Self { door, watching: Arc::default() };
        (watch, Box::new(Gallery { newcomers, watchers: Vec::new() }))
    }

    /// Subscribes from the next step on.
    pub fn begin(&self) -> Result<Sights, ApiError> {
        if self.watching.fetch_add(1, Ordering::Relaxed) >= MAX_WATCHING {
            self.watching.fetch_sub(1, Ordering::Relaxed);
            return Err(ApiError::too_many(format!("{MAX_WATCHING} clients watch the engine already")));
        }
        let (send, sights) = channel(BACKLOG);
        let sights = Sights { sights, watching: self.watching.clone() };
        let watcher = Watcher { send, tracer: None };
        self.door.send(watcher).map_err(|_| ApiError::unavailable("the engine has stopped"))?;
        Ok(sights)
    }
}

impl Sights {
    /// The next event; `None` after the engine has stopped.
    pub async fn next(&mut self) -> Option<Sight> {
        self.sights.recv().await
    }

    /// The next event, if already queued.
    pub fn ready(&mut self) -> Option<Sight> {
        self.sights.try_recv().ok()
    }
}

impl Drop for Sights {
    fn drop(&mut self) {
        self.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The subscribers, on the engine's thread. Without any, a step costs one check of an empty queue.
struct Gallery {
    newcomers: mpsc::Receiver<Watcher>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    send: Sender<Sight>,
    /// `None` while the subscriber is behind.
    tracer: Option<Tracer<Eye>>,
}

/// Trace sink of one subscriber's queue.
struct Eye {
    send: Sender<Sight>,
    missed: bool,
}

impl TraceSink for Eye {
    fn write(&mut self, step: &StepTrace) {
        if let Err(TrySendError::Full(_)) = self.send.try_send(Sight::Step(Box::new(step.clone()))) {
            self.missed = true;
        }
    }
}

impl Watcher {
    /// The subscriber's tracer. Starts it, or restarts it after a gap once half the queue is read.
    fn tracer(&mut self) -> Option<&mut Tracer<Eye>> {
        if self.tracer.as_ref().is_some_and(|tracer| tracer.sink().missed) {
            self.tracer = None;
        }
        if self.tracer.is_none()
            && self.send.capacity() >= BACKLOG / 2
            && self.send.try_send(Sight::Begin).is_ok()
        {
            let eye = Eye { send: self.send.clone(), missed: false };
            self.tracer = Some(Tracer::joining(eye));
        }
        self.tracer.as_mut()
    }
}

impl Observer for Gallery {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        self.watchers.extend(self.newcomers.try_iter());
        self.watchers.retain(|watcher| !watcher.send.is_closed());
        for tracer in self.watchers.iter_mut().filter_map(Watcher::tracer) {
            tracer.scheduled(core, step);
        }
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        for tracer in self.watchers.iter_mut().filter_map(|watcher| watcher.tracer.as_mut()) {
            tracer.completed(core, step, result, now);
            if core.is_idle() {
                tracer.settle();
            }
        }
    }
}
