//! Request reporting: access log and OpenTelemetry traces, written on background threads.
//!
//! Queues are bounded. Reports are dropped and counted when a thread falls behind; requests never
//! wait.

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

/// Queue capacity per thread.
const WAITING: usize = 4096;

/// A report.
#[derive(Clone, Debug)]
pub enum Told {
    /// The engine has ended a request.
    Ended {
        /// Its context.
        call: Arc<Call>,
        /// The outcome.
        summary: Summary,
        /// Time of the event.
        at: SystemTime,
    },
    /// An HTTP request has been answered.
    Answered {
        /// Its context.
        call: Arc<Call>,
        /// HTTP status.
        status: u16,
        /// Microseconds until the response head.
        micros: u64,
        /// Time of the event.
        at: SystemTime,
    },
    /// Ignored fields of a request, named for the first time.
    Ignored {
        /// Its context.
        call: Arc<Call>,
        /// Names of the fields.
        names: Vec<String>,
        /// Time of the event.
        at: SystemTime,
    },
    /// Tool schemas that cannot be compiled: arguments of these tools may be any object.
    Loosened {
        /// Context of the request.
        call: Arc<Call>,
        /// Paths of the schemas in the request.
        schemas: Vec<String>,
        /// Time of the event.
        at: SystemTime,
    },
    /// Flush marker: dropped once all earlier reports are written.
    Flush(SyncSender<()>),
}

/// Report sinks. Without a log and a collector, reporting costs nothing.
#[derive(Debug, Default)]
pub struct Reports {
    log: Option<SyncSender<Told>>,
    traces: Option<SyncSender<Told>>,
    dropped: AtomicU64,
}

impl Reports {
    /// Spawns a thread per configured sink.
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

    /// Whether any sink is configured.
    pub fn is_wanted(&self) -> bool {
        self.log.is_some() || self.traces.is_some()
    }

    /// Enqueues a report to all sinks; never blocks.
    pub fn tell(&self, told: Told) {
        for listener in [&self.log, &self.traces].into_iter().flatten() {
            if listener.try_send(told.clone()).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until all earlier reports are written, for at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let (held, dropped) = sync_channel(0);
        self.tell(Told::Flush(held));
        // No message ever arrives: the disconnect of the other end is the signal.
        let _ = dropped.recv_timeout(patience);
    }

    /// Number of reports dropped because a queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
