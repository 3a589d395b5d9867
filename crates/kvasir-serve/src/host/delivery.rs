//! Delivers engine output to the readers of answers, on the engine's thread.
//!
//! All wakers run after the last output of a step is stored, so woken tasks do not compete with
//! this thread.

use crate::context::request_context::RequestContext;
use crate::host::admission::Clients;
use crate::host::lock::{Mutex, locked};
use crate::metrics::Metrics;
use crate::report::event::ReportEvent;
use crate::report::sinks::Reports;
use kvasir_engine::{EventOutput, Outbox, Summary};
use std::{
    sync::Arc,
    task::Waker,
    time::{Instant, SystemTime},
};

/// Delivers engine events to the buffers of answers; runs on the engine's thread.
pub(crate) struct Delivery {
    metrics: Arc<Metrics>,
    reports: Arc<Reports>,
    /// Wakers to run after all output of a step is stored: woken tasks share the processor with
    /// this thread.
    wakers: Vec<Waker>,
}

impl Delivery {
    pub(crate) fn new(metrics: Arc<Metrics>, reports: Arc<Reports>) -> Self {
        Self { metrics, reports, wakers: Vec::new() }
    }

    pub(crate) fn deliver(&mut self, clients: &Mutex<Clients>, outbox: &Outbox) {
        let now = Instant::now();
        let mut clients = locked(clients);
        for (tag, cached) in &outbox.admitted {
            if let Some(client) = clients.by_tag.get_mut(tag) {
                self.wakers.extend(client.buffer.put(|output| output.cached = Some(*cached)));
            }
        }
        for EventOutput { event, tokens, logprobs, scores, hidden, summary } in outbox.iter() {
            let client = clients.by_tag.get_mut(&event.tag);
            let key_metrics = client.as_ref().and_then(|client| client.key_metrics.as_deref());
            summary.iter().for_each(|summary| self.metrics.ended(summary, key_metrics));
            // A disconnected client's request is aborted when its stream is dropped.
            let Some(client) = client else { continue };
            self.wakers.extend(client.buffer.put(|output| {
                output.tokens.extend_from_slice(tokens);
                output.logprobs.extend(logprobs.iter().map(|(_, logprobs)| logprobs.clone()));
                output.scores.extend_from_slice(scores);
                output.hidden.extend_from_slice(hidden);
                output.ended = summary.copied();
            }));
            if let Some(before) = client.delivered_at.replace(now).filter(|_| !tokens.is_empty()) {
                let inter_token = now.saturating_duration_since(before).as_nanos();
                self.metrics.inter_token(u64::try_from(inter_token).unwrap_or(u64::MAX));
            }
            if event.finish.is_some() {
                let client = clients.remove(event.tag);
                if let (Some(client), Some(summary)) = (client, summary) {
                    self.report(client.context, *summary);
                }
            }
        }
        drop(clients);
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn report(&self, context: Arc<RequestContext>, summary: Summary) {
        if self.reports.is_wanted() {
            self.reports.send(ReportEvent::Ended { context, summary, at: SystemTime::now() });
        }
    }

    /// Closes all buffers and refuses new clients, when the engine has stopped.
    pub(crate) fn close(&mut self, clients: &Mutex<Clients>) {
        let open = locked(clients).close();
        self.wakers.extend(open.iter().filter_map(|client| client.buffer.close()));
        self.wakers.drain(..).for_each(Waker::wake);
    }
}
