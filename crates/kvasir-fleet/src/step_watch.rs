//! Live steps of workers: the front's watchers, and the watches of a worker.
//!
//! Flow control by credit: a worker sends at most [`CREDIT`] events that the reader has not taken.
//! Beyond that, events wait in the worker's [`StepSource`], which skips steps when it is full. So a
//! slow reader delays neither the engine nor the front.
//!
//! A watcher outlives the worker's process: the next process of the replica continues the stream,
//! which then begins with a snapshot.

use crate::message::ToWorker;
use crate::order::Order;
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

/// Most events of a watcher that are on their way to its reader.
const CREDIT: u32 = 512;
/// Most events of a message.
const MAX_BATCH: usize = 128;

/// Opens a stream of the engine's steps: of all requests, or of those with one client key. `None` if
/// there are too many.
pub type WatchSteps = Box<dyn Fn(Option<u64>) -> Option<Box<dyn StepSource>> + Send>;

/// A stream of a replica's steps, on the reader's side.
pub(crate) struct WatchedSteps {
    pub(crate) watcher: u64,
    pub(crate) events: UnboundedReceiver<StepEvent>,
    pub(crate) orders: UnboundedSender<Order>,
    /// Events taken since the last report to the worker.
    pub(crate) taken: u32,
}

impl StepSource for WatchedSteps {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StepEvent>> {
        let event = self.events.poll_recv(context);
        if let Poll::Ready(Some(_)) = event {
            self.taken += 1;
            if self.taken >= CREDIT / 4 {
                let events = std::mem::take(&mut self.taken);
                // Fails only if the fleet has ended, which also ends the stream.
                let _ = self.orders.send(Order::WatchMore { watcher: self.watcher, events });
            }
        }
        event
    }
}

impl Drop for WatchedSteps {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Unwatch(self.watcher));
    }
}

/// A watcher at the front.
struct Watcher {
    replica: usize,
    key: Option<u64>,
    events: UnboundedSender<StepEvent>,
    /// Events sent to the reader that it has not reported as taken.
    untaken: u32,
}

/// The watchers of a fleet's steps.
#[derive(Default)]
pub(crate) struct Watchers {
    by_id: BTreeMap<u64, Watcher>,
}

impl Watchers {
    /// Adds a watcher. The caller sends the message to the replica if that accepts messages.
    pub(crate) fn add(
        &mut self,
        watcher: u64,
        (replica, key): (usize, Option<u64>),
        events: UnboundedSender<StepEvent>,
    ) -> ToWorker {
        self.by_id.insert(watcher, Watcher { replica, key, events, untaken: 0 });
        ToWorker::Watch { watcher, key, events: CREDIT }
    }

    /// The messages that continue the streams of a replica in its new process.
    pub(crate) fn resumed(&self, replica: usize) -> Vec<ToWorker> {
        let of_replica = self.by_id.iter().filter(|(_, watcher)| watcher.replica == replica);
        let message = |(watcher, state): (&u64, &Watcher)| {
            let events = CREDIT.saturating_sub(state.untaken);
            ToWorker::Watch { watcher: *watcher, key: state.key, events }
        };
        of_replica.map(message).collect()
    }

    /// Passes events of a replica on. Returns the message that ends the stream if it has no reader.
    pub(crate) fn deliver(
        &mut self,
        replica: usize,
        watcher: u64,
        events: Vec<StepEvent>,
    ) -> Option<ToWorker> {
        let state = self.by_id.get_mut(&watcher).filter(|state| state.replica == replica)?;
        state.untaken = state.untaken.saturating_add(events.len() as u32);
        let is_read = events.into_iter().all(|event| state.events.send(event).is_ok());
        if is_read {
            return None;
        }
        self.by_id.remove(&watcher);
        Some(ToWorker::Unwatch { watcher })
    }

    /// A reader has taken events: the replica, and the message to it.
    pub(crate) fn more(&mut self, watcher: u64, events: u32) -> Option<(usize, ToWorker)> {
        let state = self.by_id.get_mut(&watcher)?;
        state.untaken = state.untaken.saturating_sub(events);
        Some((state.replica, ToWorker::WatchMore { watcher, events }))
    }

    /// Removes a watcher: its replica, and the message to it.
    pub(crate) fn remove(&mut self, watcher: u64) -> Option<(usize, ToWorker)> {
        let state = self.by_id.remove(&watcher)?;
        Some((state.replica, ToWorker::Unwatch { watcher }))
    }
}

/// The watches of a worker, on its I/O thread.
pub(crate) struct Watches {
    open: WatchSteps,
    by_id: HashMap<u64, Watch>,
    to_batch: UnboundedSender<(u64, StepEvent)>,
    events: UnboundedReceiver<(u64, StepEvent)>,
    /// The first event of the next batch, if it was received with the last.
    next: Option<(u64, StepEvent)>,
}

/// A watch: the events that it may still send, and the task that takes them from the engine.
struct Watch {
    credit: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watches {
    pub(crate) fn new(open: WatchSteps) -> Self {
        let (to_batch, events) = unbounded_channel();
        Self { open, by_id: HashMap::new(), to_batch, events, next: None }
    }

    /// Opens a stream for a watcher, which replaces an earlier one of the same number.
    pub(crate) fn add(&mut self, watcher: u64, key: Option<u64>, events: u32) {
        let Some(source) = (self.open)(key) else { return };
        let credit = Arc::new(Semaphore::new(events.min(CREDIT) as usize));
        let task = tokio::spawn(forward(watcher, source, Arc::clone(&credit), self.to_batch.clone()));
        self.by_id.insert(watcher, Watch { credit, task });
    }

    /// The reader has taken events.
    pub(crate) fn more(&mut self, watcher: u64, events: u32) {
        if let Some(watch) = self.by_id.get(&watcher) {
            watch.credit.add_permits(events.min(CREDIT) as usize);
        }
    }

    pub(crate) fn remove(&mut self, watcher: u64) {
        self.by_id.remove(&watcher);
    }

    /// Waits for events, and returns those of one watcher that are there.
    pub(crate) async fn next(&mut self) -> Option<(u64, Vec<StepEvent>)> {
        let (watcher, first) = match self.next.take() {
            Some(next) => next,
            None => self.events.recv().await?,
        };
        let mut batch = vec![first];
        while batch.len() < MAX_BATCH
            && let Ok((other, event)) = self.events.try_recv()
        {
            if other != watcher {
                self.next = Some((other, event));
                break;
            }
            batch.push(event);
        }
        Some((watcher, batch))
    }
}

/// Takes events from the engine as long as there is credit.
async fn forward(
    watcher: u64,
    mut source: Box<dyn StepSource>,
    credit: Arc<Semaphore>,
    to: UnboundedSender<(u64, StepEvent)>,
) {
    while let Ok(permit) = credit.acquire().await {
        permit.forget();
        let Some(event) = poll_fn(|context| source.poll_next(context)).await else { return };
        if to.send((watcher, event)).is_err() {
            return;
        }
    }
}
