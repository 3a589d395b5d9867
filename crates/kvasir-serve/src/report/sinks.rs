//! Report sinks: bounded queues to the threads of the log and of the trace exporter.
//!
//! Reports are dropped and counted when a thread falls behind; requests never wait.

use crate::report::event::ReportEvent;
use crate::report::level::Level;
use crate::report::log::{Format, Log};
use crate::report::otlp::Collector;
use serde_json::Value;
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
const QUEUE_CAPACITY: usize = 4096;

/// Report sinks. Without a log and a collector, reporting costs nothing.
#[derive(Debug, Default)]
pub struct Reports {
    log: Option<SyncSender<ReportEvent>>,
    traces: Option<SyncSender<ReportEvent>>,
    dropped: AtomicU64,
    lost_lines: Arc<AtomicU64>,
    json: bool,
}

impl Reports {
    /// Spawns a thread per configured sink.
    pub fn start(log: Option<Log>, collector: Option<Collector>) -> io::Result<Arc<Self>> {
        let spawn = |name: &str, run: Box<dyn FnOnce(Receiver<ReportEvent>) + Send>| {
            let (send, receive) = sync_channel(QUEUE_CAPACITY);
            thread::Builder::new().name(name.into()).spawn(move || run(receive)).map(|_| send)
        };
        let lost_lines = Arc::<AtomicU64>::default();
        let counter = lost_lines.clone();
        let log_thread = |log: Log| spawn("log", Box::new(move |events| log.run(&events, &counter)));
        Ok(Arc::new(Self {
            log: log.map(log_thread).transpose()?,
            traces: collector
                .map(|collector| spawn("traces", Box::new(move |events| collector.run(&events))))
                .transpose()?,
            dropped: AtomicU64::new(0),
            lost_lines,
            json: log.is_some_and(|log| log.format == Format::Json),
        }))
    }

    /// Reports whose log events a test receives.
    #[cfg(test)]
    pub(crate) fn channel() -> (Arc<Self>, Receiver<ReportEvent>) {
        let (send, receive) = sync_channel(QUEUE_CAPACITY);
        (Arc::new(Self { log: Some(send), ..Self::default() }), receive)
    }

    /// Whether any sink is configured.
    pub fn is_wanted(&self) -> bool {
        self.log.is_some() || self.traces.is_some()
    }

    /// Whether the log writes JSON: then all lines of the process do.
    pub fn logs_json(&self) -> bool {
        self.json
    }

    /// Reports an event of the server itself.
    pub fn send_server(&self, level: Level, message: &str, fields: Vec<(&'static str, Value)>) {
        self.send(ReportEvent::Server { level, message: message.to_owned(), fields, at: SystemTime::now() });
    }

    /// Enqueues a report to all sinks; never blocks.
    pub fn send(&self, event: ReportEvent) {
        for sink in [&self.log, &self.traces].into_iter().flatten() {
            if sink.try_send(event.clone()).is_err() {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until all earlier reports are written, for at most `timeout`.
    pub fn flush(&self, timeout: Duration) {
        let (held, dropped) = sync_channel(0);
        self.send(ReportEvent::Flush(held));
        // No message ever arrives: the disconnect of the other end is the signal.
        let _ = dropped.recv_timeout(timeout);
    }

    /// Number of reports dropped because a queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Number of lines that could not be written to the log.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines.load(Ordering::Relaxed)
    }
}
