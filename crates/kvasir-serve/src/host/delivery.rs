//! Delivers engine output to the readers of answers, on the engine's thread.
//!
//! All wakers run after the last output of a step is stored, so woken tasks do not compete with
//! this thread.

use crate::context::request_context::RequestContext;
use crate::host::admission::{Client, Clients};
use crate::host::lock::{Mutex, locked};
use crate::host::request_output::RequestOutput;
use crate::metrics::Metrics;
use crate::report::event::ReportEvent;
use crate::report::sinks::Reports;
use kvasir_engine::{EventOutput, FirstAdmission, Outbox, Summary};
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
        for FirstAdmission { tag, cached, .. } in &outbox.admitted {
            if let Some(client) = clients.by_tag.get_mut(tag) {
                self.wakers.extend(client.buffer.put(|output| {
                    (output.cached, output.admitted) = (Some(*cached), Some(now));
                }));
            }
        }
        for (tag, processed) in &outbox.progress {
            if let Some(client) = clients.by_tag.get_mut(tag) {
                self.wakers.extend(client.buffer.put(|output| output.processed = Some((*processed, now))));
            }
        }
        for EventOutput { event, tokens, logprobs, scores, hidden, summary } in outbox.iter() {
            let client = clients.by_tag.get_mut(&event.tag);
            let key_metrics = client.as_ref().and_then(|client| client.key_metrics.as_deref());
            summary.iter().for_each(|summary| self.metrics.ended(summary, key_metrics));
            // A disconnected client's request is aborted when its stream is dropped.
            let Some(client) = client else { continue };
            if !client.is_cut {
                let (tenant, mut charged) = (client.context.tenant(), Ok(()));
                self.wakers.extend(client.buffer.put(|output| {
                    output.tokens.extend_from_slice(tokens);
                    output.logprobs.extend(logprobs.iter().map(|(_, logprobs)| logprobs.clone()));
                    output.scores.extend_from_slice(scores);
                    output.hidden.extend_from_slice(hidden);
                    output.ended = summary.copied();
                    charged = output.charge(tenant);
                }));
                if charged.is_err() {
                    self.cut(client);
                } else if let Some(before) = client.delivered_at.replace(now).filter(|_| !tokens.is_empty()) {
                    let inter_token = now.saturating_duration_since(before).as_nanos();
                    self.metrics.inter_token(u64::try_from(inter_token).unwrap_or(u64::MAX));
                }
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

    /// Closes the connection of a client that does not read its answer, and drops the unread
    /// output. The client stays registered until the request ends, so that its end is counted and
    /// reported.
    fn cut(&mut self, client: &mut Client) {
        client.is_cut = true;
        self.wakers.extend(client.buffer.put(RequestOutput::clear));
        self.wakers.extend(client.buffer.close());
        // Its stream is then dropped, which aborts the request.
        client.context.connection.cut();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::request_context::Tenant;
    use crate::host::admission::AdmissionLimits;
    use crate::host::engine_thread::{Host, Submission};
    use crate::host::request_output::RequestOutput;
    use crate::memory_budget::STREAMS;
    use crate::metrics::page::ServerStatus;
    use crate::metrics::prometheus::Names;
    use kvasir_engine::{Chunked, Core, Engine, Limits, Mixing, Order, Params, Request};
    use kvasir_kv::{CacheConfig, CacheKind, build};
    use kvasir_sim::Toy;
    use std::{thread::sleep, time::Duration};

    #[tokio::test]
    async fn reader_beyond_its_keys_share_is_cut() {
        let limits = Limits { max_model_len: 1 << 16, ..Limits::default() };
        let cache = build(CacheKind::Contiguous, &CacheConfig::new(1 << 16)).unwrap();
        let core = Core::new(limits, Order::Fcfs, Box::new(Chunked::new(64, Mixing::Off)), cache);
        let engine = Engine::new(core, Toy::new(), || 0);
        let timeout = Duration::from_secs(60);
        let (reports, received) = Reports::channel();
        let host = Host::start(engine, AdmissionLimits::default(), reports, timeout).unwrap();
        // Other streams of the key use up its share of the budget.
        let mut held = STREAMS.hold_for(Tenant::Key(815));
        held.grow_to(STREAMS.tenant_bytes() - (32 << 10)).unwrap();
        held.fill_reserve();
        let key_name = Some("slow".to_owned());
        let context = Arc::new(RequestContext { key: 815, key_name, ..RequestContext::default() });
        let params = Params { max_tokens: 18_000, ignore_eos: true, key: 815, ..Params::default() };
        let request = Request { prompt: vec![5; 3], params, ..Request::default() };
        let submission = Submission { request, tokens: 18_003 };
        let mut streams = context.clone().scope_sync(|| host.submit(vec![submission], 1)).unwrap();
        // Its backlog is charged from 64 KiB on, which are 16,384 tokens.
        while !context.connection.poll(&std::task::Context::from_waker(Waker::noop())) {
            sleep(Duration::from_millis(10));
        }
        let error = streams[0].next(&mut RequestOutput::default()).await.map(drop);
        let error = match error {
            Ok(()) => streams[0].next(&mut RequestOutput::default()).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.status, 503);
        drop(streams);
        let ended = received.recv_timeout(timeout).unwrap();
        assert!(
            matches!(ended, ReportEvent::Ended { context, .. } if context.key == 815),
            "the end is reported"
        );
        assert_eq!(host.open(), 0);
        let page = host.metrics().page(Names::Own, "tiny", 0, ServerStatus::default());
        let is_counted = |line: &str| {
            line.contains("key_requests_total{") && line.contains("\"slow\"") && line.ends_with(" 1")
        };
        assert!(page.lines().any(is_counted), "{page}");
    }
}
