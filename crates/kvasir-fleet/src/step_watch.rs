//! Live step subscriptions across processes: `Subscribers` at the front, `Subscriptions` in a
//! worker.
//!
//! Credit-based flow control: a worker sends at most [`CREDIT`] events that the reader has not
//! consumed. Without credit, events wait in the worker's [`StepSource`], which skips steps when it
//! is full. So a slow reader delays neither the engine nor the front.
//!
//! A subscription survives a restart of the worker: the front subscribes again at the new process,
//! whose stream begins with a snapshot.

use crate::message::ToWorker;
use crate::order::FrontCommand;
use kvasir_engine::{StepEvent, StepSource};
use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    task::JoinHandle,
};

/// Maximum number of events of a subscriber that its reader has not consumed.
const CREDIT: u32 = 512;
/// Maximum number of events in a message.
const MAX_BATCH: usize = 128;

/// Opens a stream of the engine's steps: with all requests, or only those of a client key. `None`
/// if there are too many streams.
pub type SubscribeSteps = Box<dyn Fn(Option<u64>) -> Option<Box<dyn StepSource>> + Send>;

/// A stream of a replica's steps, on the reader's side.
pub(crate) struct ReplicaSteps {
    pub(crate) subscriber: u64,
    pub(crate) events: UnboundedReceiver<StepEvent>,
    pub(crate) commands: UnboundedSender<FrontCommand>,
    /// Events consumed since the last report to the worker.
    pub(crate) taken: u32,
}

impl StepSource for ReplicaSteps {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StepEvent>> {
        let event = self.events.poll_recv(context);
        if let Poll::Ready(Some(_)) = event {
            self.taken += 1;
            if self.taken >= CREDIT / 4 {
                let events = std::mem::take(&mut self.taken);
                // Fails only if the fleet has ended, which also ends the stream.
                let _ = self.commands.send(FrontCommand::AddCredit { subscriber: self.subscriber, events });
            }
        }
        event
    }
}

impl Drop for ReplicaSteps {
    fn drop(&mut self) {
        let _ = self.commands.send(FrontCommand::Unsubscribe(self.subscriber));
    }
}

/// A subscriber at the front.
struct Subscriber {
    replica: usize,
    key: Option<u64>,
    events: UnboundedSender<StepEvent>,
    /// Events sent to the reader that it has not reported as consumed.
    outstanding: u32,
}

/// The subscribers of a fleet's steps.
#[derive(Default)]
pub(crate) struct Subscribers {
    by_id: BTreeMap<u64, Subscriber>,
}

impl Subscribers {
    /// Adds a subscriber. The caller must send the returned message if the replica accepts
    /// messages.
    pub(crate) fn add(
        &mut self,
        subscriber: u64,
        replica: usize,
        key: Option<u64>,
        events: UnboundedSender<StepEvent>,
    ) -> ToWorker {
        self.by_id.insert(subscriber, Subscriber { replica, key, events, outstanding: 0 });
        ToWorker::Subscribe { subscriber, key, events: CREDIT }
    }

    /// Messages that subscribe all subscribers of a replica at its new process.
    pub(crate) fn resume_messages(&self, replica: usize) -> Vec<ToWorker> {
        let of_replica = self.by_id.iter().filter(|(_, subscriber)| subscriber.replica == replica);
        let message = |(subscriber, state): (&u64, &Subscriber)| {
            let events = CREDIT.saturating_sub(state.outstanding);
            ToWorker::Subscribe { subscriber: *subscriber, key: state.key, events }
        };
        of_replica.map(message).collect()
    }

    /// Passes events to their reader. If there are none, the worker has refused the stream: the
    /// subscriber is removed, which ends it at the reader. If the reader is gone, removes the
    /// subscriber and returns the message that ends the stream.
    pub(crate) fn deliver(
        &mut self,
        replica: usize,
        subscriber: u64,
        events: Vec<StepEvent>,
    ) -> Option<ToWorker> {
        let state = self.by_id.get_mut(&subscriber).filter(|state| state.replica == replica)?;
        if events.is_empty() {
            self.by_id.remove(&subscriber);
            return None;
        }
        state.outstanding = state.outstanding.saturating_add(events.len() as u32);
        let is_read = events.into_iter().all(|event| state.events.send(event).is_ok());
        if is_read {
            return None;
        }
        self.by_id.remove(&subscriber);
        Some(ToWorker::Unsubscribe { subscriber })
    }

    /// A reader has consumed events. Returns the replica, and the message to it.
    pub(crate) fn add_credit(&mut self, subscriber: u64, events: u32) -> Option<(usize, ToWorker)> {
        let state = self.by_id.get_mut(&subscriber)?;
        state.outstanding = state.outstanding.saturating_sub(events);
        Some((state.replica, ToWorker::AddCredit { subscriber, events }))
    }

    /// Removes a subscriber. Returns its replica, and the message to it.
    pub(crate) fn remove(&mut self, subscriber: u64) -> Option<(usize, ToWorker)> {
        let state = self.by_id.remove(&subscriber)?;
        Some((state.replica, ToWorker::Unsubscribe { subscriber }))
    }
}

/// The subscriptions of a worker, on its I/O thread.
pub(crate) struct Subscriptions {
    open: SubscribeSteps,
    by_id: HashMap<u64, Subscription>,
    to_batch: UnboundedSender<(u64, StepEvent)>,
    events: UnboundedReceiver<(u64, StepEvent)>,
    /// Subscribers whose stream could not be opened, and that have not been told.
    refused: Vec<u64>,
    /// The first event of the next batch, if it was received with the last.
    next: Option<(u64, StepEvent)>,
}

/// A subscription at the worker.
struct Subscription {
    /// One permit per event that may still be sent.
    credit: Arc<Semaphore>,
    /// Runs `forward`.
    task: JoinHandle<()>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Subscriptions {
    pub(crate) fn new(open: SubscribeSteps) -> Self {
        let (to_batch, events) = unbounded_channel();
        Self { open, by_id: HashMap::new(), to_batch, events, refused: Vec::new(), next: None }
    }

    /// Opens a stream for a subscriber, and replaces its earlier one. A subscriber whose stream
    /// cannot be opened gets an empty batch.
    pub(crate) fn add(&mut self, subscriber: u64, key: Option<u64>, events: u32) {
        let Some(source) = (self.open)(key) else { return self.refused.push(subscriber) };
        let credit = Arc::new(Semaphore::new(events.min(CREDIT) as usize));
        let task = tokio::spawn(forward(subscriber, source, Arc::clone(&credit), self.to_batch.clone()));
        self.by_id.insert(subscriber, Subscription { credit, task });
    }

    /// The reader has consumed events.
    pub(crate) fn add_credit(&mut self, subscriber: u64, events: u32) {
        if let Some(subscription) = self.by_id.get(&subscriber) {
            subscription.credit.add_permits(events.min(CREDIT) as usize);
        }
    }

    pub(crate) fn remove(&mut self, subscriber: u64) {
        self.by_id.remove(&subscriber);
    }

    /// Waits for events. Returns a batch of queued events of one subscriber, or an empty one if its
    /// stream was refused.
    pub(crate) async fn next(&mut self) -> Option<(u64, Vec<StepEvent>)> {
        if let Some(subscriber) = self.refused.pop() {
            return Some((subscriber, Vec::new()));
        }
        let (subscriber, first) = match self.next.take() {
            Some(next) => next,
            None => self.events.recv().await?,
        };
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH
            && let Ok((other, event)) = self.events.try_recv()
        {
            if other != subscriber {
                self.next = Some((other, event));
                break;
            }
            batch.push(event);
        }
        Some((subscriber, batch))
    }
}

/// Moves events from `source` to `to`, one per permit of `credit`.
async fn forward(
    subscriber: u64,
    mut source: Box<dyn StepSource>,
    credit: Arc<Semaphore>,
    to: UnboundedSender<(u64, StepEvent)>,
) {
    while let Ok(permit) = credit.acquire().await {
        permit.forget();
        let Some(event) = poll_fn(|context| source.poll_next(context)).await else { return };
        if to.send((subscriber, event)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_streams_end_at_their_reader() {
        let mut subscribers = Subscribers::default();
        let (events, mut reader) = unbounded_channel();
        subscribers.add(7, 1, None, events);
        let mut subscriptions = Subscriptions::new(Box::new(|_| None));
        subscriptions.add(7, None, CREDIT);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (subscriber, batch) = runtime.block_on(subscriptions.next()).unwrap();
        assert_eq!((subscriber, batch.len()), (7, 0));
        assert!(subscribers.deliver(1, subscriber, batch).is_none());
        assert!(runtime.block_on(reader.recv()).is_none());
    }
}
