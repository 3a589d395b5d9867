//! OpenTelemetry trace exporter: OTLP as JSON over HTTP, batched on a background thread.
//!
//! Each request becomes a root span with children `queued`, `prefill` and `decode`.

use crate::context::request_context::RequestContext;
use crate::report::event::ReportEvent;
use kvasir_engine::{Finish, Nanos, Summary};
use serde_json::{Value, json};
use std::{
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Batch size, and how long the first report of a batch waits for others.
const BATCH: usize = 128;
const WAIT: Duration = Duration::from_secs(1);
/// Timeouts of connect, write and read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum response size that is read, in bytes.
const MAX_RESPONSE: u64 = 1 << 16;

/// `--otlp-endpoint`: a trace collector that accepts OTLP/JSON over plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    authority: String,
    path: String,
    service: String,
}

impl Collector {
    /// Parses `http://HOST:PORT[/PATH]`; the default path is the standard's `/v1/traces`.
    pub fn parse(text: &str, service: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("http://").filter(|rest| rest.chars().all(|c| c.is_ascii_graphic()));
        let rest = rest.ok_or_else(|| format!("`{text}` is not an address like http://127.0.0.1:4318"))?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = if path.is_empty() { "v1/traces" } else { path };
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if has_port {
            Ok(Self { authority: authority.into(), path: format!("/{path}"), service: service.into() })
        } else {
            Err(format!("`{text}` names no port"))
        }
    }

    /// Exports until all senders are dropped, then sends the rest.
    pub(super) fn run(self, events: &Receiver<ReportEvent>) {
        let mut ids = Ids::default();
        let mut has_reported_outage = false;
        while let Ok(first) = events.recv() {
            let until = Instant::now() + WAIT;
            let mut batch = vec![first];
            while batch.len() < BATCH && !matches!(batch.last(), Some(ReportEvent::Flush(_))) {
                match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(next) => batch.push(next),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            let spans: Vec<Value> = batch.iter().flat_map(|event| self.of(event, &mut ids)).collect();
            if spans.is_empty() {
                continue;
            }
            match self.send(&self.body(spans).to_string()) {
                Ok(()) => has_reported_outage = false,
                Err(_) if has_reported_outage => {}
                Err(error) => {
                    // Logged once per outage.
                    let _ = writeln!(
                        io::stderr(),
                        "kvasir: traces cannot be sent to http://{}{}: {error}",
                        self.authority,
                        self.path
                    );
                    has_reported_outage = true;
                }
            }
        }
    }

    fn of(&self, event: &ReportEvent, ids: &mut Ids) -> Vec<Value> {
        match event {
            ReportEvent::Ended { context, summary, at } => spans(context, summary, *at, ids),
            ReportEvent::Answered { .. }
            | ReportEvent::Ignored { .. }
            | ReportEvent::Clamped { .. }
            | ReportEvent::Loosened { .. }
            | ReportEvent::Server { .. }
            | ReportEvent::Flush(_) => Vec::new(),
        }
    }

    fn body(&self, spans: Vec<Value>) -> Value {
        json!({"resourceSpans": [{
            "resource": {"attributes": [text("service.name", &self.service)]},
            "scopeSpans": [{
                "scope": {"name": "kvasir", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans,
            }],
        }]})
    }

    fn send(&self, body: &str) -> io::Result<()> {
        let mut addresses = self.authority.to_socket_addrs()?;
        let address = addresses.next().ok_or_else(|| io::Error::other("the name has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.path,
            self.authority,
            body.len()
        )?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer)?;
        if !is_success(&answer) {
            return Err(io::Error::other(format!("it answered `{}`", String::from_utf8_lossy(&answer))));
        }
        // Drains the response so that the collector can finish. The spans are delivered either way.
        let _ = io::copy(&mut stream.take(MAX_RESPONSE), &mut io::sink());
        Ok(())
    }
}

/// Whether a response head is an HTTP 2xx status.
fn is_success(answer: &[u8; 12]) -> bool {
    matches!(answer, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1', b' ', b'2', ..])
}

/// Random span and trace ids.
#[derive(Default)]
struct Ids {
    random: RandomState,
    given: u64,
}

impl Ids {
    fn next(&mut self) -> u64 {
        self.given += 1;
        self.random.hash_one(self.given).max(1)
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    // OTLP/JSON encodes 64-bit integers as strings.
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// The spans of a request: root, queue, prefill, decode.
fn spans(context: &RequestContext, summary: &Summary, at: SystemTime, ids: &mut Ids) -> Vec<Value> {
    let times = &summary.timings;
    let ended = times.finished.unwrap_or(times.arrived);
    let wall =
        u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos()).unwrap_or(u64::MAX);
    let unix = |time: Nanos| wall.saturating_sub(ended.saturating_sub(time)).to_string();
    let (trace, parent) = match context.parent {
        Some((trace, span)) => (trace, Some(span)),
        None => (u128::from(ids.next()) << 64 | u128::from(ids.next()), None),
    };
    let root = ids.next();
    let span = |name: &str, kind: u32, id: u64, parent: Option<u64>, from: Nanos, to: Nanos| {
        json!({
            "traceId": format!("{trace:032x}"), "spanId": format!("{id:016x}"),
            "parentSpanId": parent.map_or_else(String::new, |id| format!("{id:016x}")),
            "name": name, "kind": kind, "startTimeUnixNano": unix(from), "endTimeUnixNano": unix(to),
        })
    };
    let mut request = span("request", 2, root, parent, times.arrived, ended);
    let mut attributes = vec![
        text("kvasir.request", &context.id),
        text("http.route", &context.route),
        text("kvasir.finish", &summary.finish.to_string()),
        number("kvasir.key", context.key),
        number("gen_ai.usage.input_tokens", summary.prompt.into()),
        number("gen_ai.usage.output_tokens", summary.outputs.into()),
        number("kvasir.cached_tokens", summary.cached.into()),
        number("kvasir.matched_tokens", summary.prefix.matched.into()),
        number("kvasir.preemptions", summary.preemptions.into()),
    ];
    attributes.extend(summary.prefix.cache_end.map(|cache_end| text("kvasir.cache_end", cache_end.label())));
    request["attributes"] = attributes.into();
    if matches!(summary.finish, Finish::Failed(_) | Finish::Refused(_)) {
        request["status"] = json!({"code": 2, "message": summary.finish.to_string()});
    }
    let admitted = times.admitted.unwrap_or(ended);
    let mut all = vec![request, span("queued", 1, ids.next(), Some(root), times.arrived, admitted)];
    if let Some(admitted) = times.admitted {
        let first = times.first_token.unwrap_or(ended);
        all.push(span("prefill", 1, ids.next(), Some(root), admitted, first));
    }
    if let Some(first) = times.first_token {
        all.push(span("decode", 1, ids.next(), Some(root), first, ended));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sinks::Reports;
    use kvasir_engine::{PrefixMatch, Timings};
    use kvasir_kv::CacheEnd;
    use std::{io::BufRead, net::TcpListener, sync::Arc};

    fn ended() -> ReportEvent {
        let timings = Timings {
            arrived: 1_000,
            admitted: Some(3_000),
            first_token: Some(10_000),
            last_token: Some(50_000),
            finished: Some(51_000),
        };
        let summary = Summary {
            prompt: 7,
            outputs: 5,
            cached: 4,
            prefix: PrefixMatch { matched: 4, cache_end: Some(CacheEnd::OtherKey), public_cache_end: None },
            timings,
            ..Summary::empty(1, Finish::Eos)
        };
        let context = RequestContext {
            id: "r9".into(),
            key: 1,
            route: "/v1/completions".into(),
            parent: Some((0xabc, 0xdef)),
            ..RequestContext::default()
        };
        ReportEvent::Ended {
            context: Arc::new(context),
            summary,
            at: UNIX_EPOCH + Duration::from_micros(1_000_000),
        }
    }

    #[test]
    fn collector_receives_a_span_per_phase() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let reports =
            Reports::start(None, Some(Collector::parse(&format!("http://{address}"), "test").unwrap()));
        let reports = reports.unwrap();
        reports.send(ended());
        // With all senders dropped, pending spans are sent at once.
        drop(reports);
        let (stream, _) = listener.accept().unwrap();
        let mut reader = io::BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut length) = (String::new(), 0);
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        assert_eq!(first, "POST /v1/traces HTTP/1.1\r\n");
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(n) = line.strip_prefix("Content-Length: ") {
                length = n.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        // The test does not check the response.
        let _ = (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        let body: Value = serde_json::from_slice(&body).unwrap();
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["request", "queued", "prefill", "decode"]);
        assert_eq!(spans[0]["parentSpanId"], "0000000000000def");
        assert_eq!(spans[0]["traceId"], "00000000000000000000000000000abc");
        for span in &spans[1..] {
            assert_eq!(span["parentSpanId"], spans[0]["spanId"]);
            assert_eq!(span["traceId"], spans[0]["traceId"]);
        }
        let nanos = |i: usize, key: &str| spans[i][key].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(nanos(0, "endTimeUnixNano") - nanos(0, "startTimeUnixNano"), 50_000);
        assert_eq!(nanos(2, "endTimeUnixNano") - nanos(2, "startTimeUnixNano"), 7_000);
        assert_eq!(nanos(3, "endTimeUnixNano"), 1_000_000_000);
        let attributes = spans[0]["attributes"].as_array().unwrap();
        assert!(attributes.contains(&text("kvasir.cache_end", "other_key")), "{attributes:?}");
        assert!(!body.to_string().contains("prompt"), "nothing of a prompt is told");
    }

    #[test]
    fn flush_sends_all_earlier_reports() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Collector::parse(&format!("http://{address}"), "test").unwrap();
        let reports = Reports::start(None, Some(collector)).unwrap();
        reports.send(ended());
        // The collector never responds, so sending takes its full timeout.
        reports.flush(Duration::from_secs(600));
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok(), "a connection was there before the flush was over");
    }

    #[test]
    fn http_1_0_collectors_are_accepted() {
        for (answer, is_well) in [
            (b"HTTP/1.1 200", true),
            (b"HTTP/1.0 202", true),
            (b"HTTP/1.1 503", false),
            (b"SSH-2.0-2.00", false),
        ] {
            assert_eq!(is_success(answer), is_well, "{}", String::from_utf8_lossy(answer));
        }
    }

    #[test]
    fn endpoints() {
        let parse = |text| Collector::parse(text, "s").map(|c| (c.authority, c.path));
        assert_eq!(parse("http://h:4318"), Ok(("h:4318".into(), "/v1/traces".into())));
        assert_eq!(parse("http://h:4318/x/y"), Ok(("h:4318".into(), "/x/y".into())));
        for bad in ["https://h:4318", "h:4318", "http://h", "http://:1", "http://h:x", "http://a b:1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
