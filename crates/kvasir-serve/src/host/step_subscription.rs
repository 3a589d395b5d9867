//! Live step subscriptions: each subscriber receives a trace of every step of an engine, in this
//! process or in a worker, through a bounded queue.
//!
//! Backpressure: a subscriber whose queue is full misses steps, and restarts with a `Begin` event
//! and a full snapshot once half its queue is read. A slow subscriber never delays the engine; each
//! one costs the engine's thread one record per step. `tests/watch.rs` guards this.
//!
//! A subscriber with an API key sees that key's requests only, and a key has at most half of the
//! subscriptions.

use crate::error::ApiError;
use crate::host::errors::stopped;
use crate::host::lock::{Mutex, locked};
use kvasir_engine::{Core, Nanos, Observer, Replicas, StepEvent, StepSource, StepTrace, TraceSink, Tracer};
use kvasir_exec::{Step, StepError};
use std::{
    collections::HashMap,
    future::poll_fn,
    sync::{Arc, mpsc},
    task::{Context, Poll, Waker},
};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// Queue capacity per subscriber, in steps; a subscriber further behind misses some.
const BACKLOG: usize = 1024;
/// Maximum number of subscribers.
const MAX_SUBSCRIBERS: usize = 16;
/// Maximum number of subscribers with one API key.
const MAX_OF_KEY: usize = MAX_SUBSCRIBERS / 2;

/// Whose requests a subscriber sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visibility {
    /// All requests.
    All,
    /// Those of this API key.
    Key(u64),
}

/// Handle to subscribe.
#[derive(Clone)]
pub struct StepFeed {
    engines: Engines,
    counts: Arc<Mutex<HashMap<Visibility, usize>>>,
}

/// The engines that can be subscribed to.
#[derive(Clone)]
enum Engines {
    /// The engine in this process.
    Local(mpsc::Sender<Subscriber>),
    /// Engines in worker processes.
    Replicas(Arc<dyn Replicas>),
}

/// A subscription: events in order. Dropping it unsubscribes.
pub struct StepSubscription {
    events: Box<dyn StepSource>,
    sees: Visibility,
    counts: Arc<Mutex<HashMap<Visibility, usize>>>,
}

impl StepFeed {
    /// A subscription handle, and the observer that must be installed in the engine.
    pub fn new() -> (Self, Box<dyn Observer>) {
        let (sender, receiver) = mpsc::channel();
        let feed = Self { engines: Engines::Local(sender), counts: Arc::default() };
        (feed, Box::new(Subscribers { receiver, subscribers: Vec::new() }))
    }

    /// A subscription handle for engines in other processes.
    pub fn of_replicas(replicas: Arc<dyn Replicas>) -> Self {
        Self { engines: Engines::Replicas(replicas), counts: Arc::default() }
    }

    /// Subscribes to the engine, or to replica 0, from its next step on.
    pub fn subscribe(&self, sees: Visibility) -> Result<StepSubscription, ApiError> {
        self.subscribe_to(sees, 0)
    }

    /// Subscribes to a replica from its next step on. The index is ignored if the only engine is in
    /// this process.
    pub fn subscribe_to(&self, sees: Visibility, replica: usize) -> Result<StepSubscription, ApiError> {
        let mut counts = locked(&self.counts);
        if counts.values().sum::<usize>() >= MAX_SUBSCRIBERS {
            return Err(ApiError::too_many(format!("{MAX_SUBSCRIBERS} clients watch the engine already")));
        }
        let own = counts.entry(sees).or_default();
        if sees != Visibility::All && *own >= MAX_OF_KEY {
            return Err(ApiError::too_many(format!("{own} clients of this key watch the engine already")));
        }
        *own += 1;
        drop(counts);
        let (send, receiver) = channel(BACKLOG);
        // Its `Drop` decrements the counts, on the error paths below, too.
        let mut subscription =
            StepSubscription { events: Box::new(Queue(receiver)), sees, counts: self.counts.clone() };
        match &self.engines {
            Engines::Local(sender) => {
                sender.send(Subscriber { send, sees, tracer: None }).map_err(|_| stopped())?;
            }
            Engines::Replicas(replicas) => {
                let key = match sees {
                    Visibility::All => None,
                    Visibility::Key(key) => Some(key),
                };
                subscription.events = replicas.subscribe_steps(replica, key).ok_or_else(stopped)?;
            }
        }
        Ok(subscription)
    }
}

impl StepSubscription {
    /// The next event; `None` after the engine has stopped.
    pub async fn next(&mut self) -> Option<StepEvent> {
        poll_fn(|context| self.events.poll_next(context)).await
    }

    /// The next event, if already queued.
    pub fn try_next(&mut self) -> Option<StepEvent> {
        match self.events.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        }
    }
}

impl StepSource for StepSubscription {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StepEvent>> {
        self.events.poll_next(context)
    }
}

/// The queue of a subscriber of the engine in this process.
struct Queue(Receiver<StepEvent>);

impl StepSource for Queue {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StepEvent>> {
        self.0.poll_recv(context)
    }
}

impl Drop for StepSubscription {
    fn drop(&mut self) {
        let mut counts = locked(&self.counts);
        if let Some(count) = counts.get_mut(&self.sees) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.sees);
            }
        }
    }
}

/// The subscribers, on the engine's thread. Without any, a step costs one check of an empty queue.
struct Subscribers {
    receiver: mpsc::Receiver<Subscriber>,
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    send: Sender<StepEvent>,
    sees: Visibility,
    /// `None` while the subscriber is behind.
    tracer: Option<Tracer<SubscriberQueue>>,
}

/// Trace sink of one subscriber's queue.
struct SubscriberQueue {
    send: Sender<StepEvent>,
    missed: bool,
}

impl TraceSink for SubscriberQueue {
    fn write(&mut self, step: &StepTrace) {
        if let Err(TrySendError::Full(_)) = self.send.try_send(StepEvent::Step(Box::new(step.clone()))) {
            self.missed = true;
        }
    }
}

impl Subscriber {
    /// The subscriber's tracer. Starts it, or restarts it after a gap once half the queue is read.
    fn tracer(&mut self) -> Option<&mut Tracer<SubscriberQueue>> {
        if self.tracer.as_ref().is_some_and(|tracer| tracer.sink().missed) {
            self.tracer = None;
        }
        if self.tracer.is_none()
            && self.send.capacity() >= BACKLOG / 2
            && self.send.try_send(StepEvent::Begin).is_ok()
        {
            let queue = SubscriberQueue { send: self.send.clone(), missed: false };
            let tracer = Tracer::for_running_engine(queue);
            self.tracer = Some(match self.sees {
                Visibility::All => tracer,
                Visibility::Key(key) => tracer.only(key),
            });
        }
        self.tracer.as_mut()
    }
}

impl Subscribers {
    /// Adds new subscribers, and removes those whose receivers are closed.
    fn update_subscribers(&mut self) {
        self.subscribers.extend(self.receiver.try_iter());
        self.subscribers.retain(|subscriber| !subscriber.send.is_closed());
    }
}

impl Observer for Subscribers {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        self.update_subscribers();
        for tracer in self.subscribers.iter_mut().filter_map(Subscriber::tracer) {
            tracer.scheduled(core, step);
        }
    }

    fn joined(&mut self, core: &Core, step: &Step, now: Nanos) {
        self.update_subscribers();
        for tracer in self.subscribers.iter_mut().filter_map(Subscriber::tracer) {
            tracer.joined(core, step, now);
            tracer.flush();
        }
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos) {
        for tracer in self.subscribers.iter_mut().filter_map(|subscriber| subscriber.tracer.as_mut()) {
            tracer.completed(core, step, result, now);
            if core.is_idle() {
                tracer.flush();
            }
        }
    }
}
