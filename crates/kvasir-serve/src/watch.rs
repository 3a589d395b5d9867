//! The engine as those see it who watch: a record of every step, for each of them.

use crate::ApiError;
use kvasir_engine::{Core, Nanos, Observer, StepTrace, TraceSink, Tracer};
use kvasir_exec::{Step, StepError};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
    mpsc,
};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// Steps that wait for somebody who watches. Who is further behind misses some.
const BACKLOG: usize = 1024;

/// Most who watch at once. Each costs the engine's thread a record per step.
const MAX_WATCHING: usize = 16;

/// What somebody who watches gets to see.
#[derive(Clone, Debug, PartialEq)]
pub enum Sight {
    /// What follows begins anew: the next step tells of everybody who is there.
    Begin,
    /// One more step.
    Step(Box<StepTrace>),
}

/// Where one asks to watch.
#[derive(Clone)]
pub struct Watch {
    door: mpsc::Sender<Watcher>,
    watching: Arc<AtomicUsize>,
}

/// What is seen, in order. Dropping it ends the watching.
pub struct Sights {
    sights: Receiver<Sight>,
    watching: Arc<AtomicUsize>,
}

impl Watch {
    /// A way to watch, and the observer that the engine must be given for it.
    pub fn new() -> (Self, Box<dyn Observer>) {
        let (door, newcomers) = mpsc::channel();
        let watch = Self { door, watching: Arc::default() };
        (watch, Box::new(Gallery { newcomers, watchers: Vec::new() }))
    }

    /// Watches from the next step on.
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
    /// The next sight; none when the engine has stopped.
    pub async fn next(&mut self) -> Option<Sight> {
        self.sights.recv().await
    }

    /// The next sight if it is there already.
    pub fn ready(&mut self) -> Option<Sight> {
        self.sights.try_recv().ok()
    }
}

impl Drop for Sights {
    fn drop(&mut self) {
        self.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All who watch, on the engine's side. With nobody there a step costs it one look at an empty queue.
struct Gallery {
    newcomers: mpsc::Receiver<Watcher>,
    watchers: Vec<Watcher>,
}

struct Watcher {
    send: Sender<Sight>,
    /// None while too much waits for it.
    tracer: Option<Tracer<Eye>>,
}

/// Puts records into one watcher's backlog.
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
    /// Begins, or begins again after a gap when half of what waited has been read.
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
