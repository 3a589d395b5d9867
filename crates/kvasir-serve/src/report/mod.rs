//! What is told about requests that have ended: a line in the log, a span in a trace. It is written on threads of its own;
//! when those do not keep up, reports are dropped and counted, and no request waits.

mod log;
mod otlp;

pub use log::{Format, Level, Log};
pub use otlp::Collector;

use crate::call::Call;
use kvasir_engine::Summary;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, SystemTime},
};

/// Reports that wait for a thread at most.
const WAITING: usize = 4096;

/// One thing to tell.
#[derive(Clone, Debug)]
pub enum Told {
    /// The engine has ended a request.
    Ended {
        /// For whom.
        call: Arc<Call>,
        /// Number of the answer, and how it went.
        summary: Summary,
        /// When.
        at: SystemTime,
    },
    /// An HTTP request was answered without an engine.
    Answered {
        /// Which.
        call: Arc<Call>,
        /// Its status.
        status: u16,
        /// Microseconds until its head was sent.
        micros: u64,
        /// When.
        at: SystemTime,
    },
    /// Fields of a request had no effect, and these names were not logged before.
    Ignored {
        /// Which request.
        call: Arc<Call>,
        /// Their names.
        names: Vec<String>,
        /// When.
        at: SystemTime,
    },
    /// Schemas of tools cannot be compiled: calls of these tools may have any object for arguments.
    Loosened {
        /// Which request offers them.
        call: Arc<Call>,
        /// Where it has them.
        schemas: Vec<String>,
        /// When.
        at: SystemTime,
    },
    /// Somebody waits until all that was told before is written, which is when this is dropped.
    Flush(SyncSender<()>),
}

/// Where reports go. Without a log and a collector they go nowhere and cost nothing.
#[derive(Debug, Default)]
pub struct Reports {
    log: Option<SyncSender<Told>>,
    traces: Option<SyncSender<Told>>,
    dropped: AtomicU64,
}

impl Reports {
    /// Starts what is wanted.
    pub fn start(log: Option<Log>, collector: Option<Collector>) -> io::Result<Arc<Self>> {
        let spawn = |name: &str, run: Box<dyn FnOnce(Receiver<Told>) + Send>| {
            let (send, receive) = sync_channel(WAITING);
            thread::Builder::new().name(name.into()).spawn(move || run(receive)).map(|_| send)
        };
        Ok(Arc::new(Self {
            log: log.map(|log| spawn("log", Box::new(move |told| log.run(&told)))).transpose()?,
            traces: collector
                .map(|collector| spawn("traces", Box::new(move |told| collector.run(&told))))
                .transpose()?,
            dropped: AtomicU64::new(0),
        }))
    }

    /// Whether anybody listens.
    pub fn is_wanted(&self) -> bool {
        self.log.is_some() || self.traces.is_some()
    }

    /// Tells it to all who listen and have room.
    pub fn tell(&self, told: Told) {
        for listener in [&self.log, &self.traces].into_iter().flatten() {
            if listener.try_send(told.clone()).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until everything told so far is written and sent, but no longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        let (held, dropped) = sync_channel(0);
        self.tell(Told::Flush(held));
        // Nothing ever comes: that nobody holds the other end any more is what is waited for.
        let _ = dropped.recv_timeout(patience);
    }

    /// Reports that nobody had room for.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
