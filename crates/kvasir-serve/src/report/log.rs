//! Request log on stderr, as text or JSON lines. Never contains prompt or answer text.

use crate::context::request_context::RequestContext;
use crate::report::event::ReportEvent;
use crate::report::level::Level;
use crate::timestamp::rfc3339;
use kvasir_engine::{Finish, Nanos, Summary};
use serde_json::{Map, Value, json};
use std::{
    io::{self, Write},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::Receiver,
    },
    time::SystemTime,
};

/// `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A log on stderr: one line per request with ids, counts and times, never prompt or answer text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Line format.
    pub format: Format,
    /// Minimum severity.
    pub level: Level,
}

impl Log {
    /// Writes events to stderr until the sender is dropped. Adds the lines that cannot be written,
    /// for example because the disk is full, to `lost_lines`.
    pub(super) fn run(self, events: &Receiver<ReportEvent>, lost_lines: &AtomicU64) {
        self.write_to(io::stderr(), events, lost_lines);
    }

    /// Writes events to `out`. The first batch after a failure begins with a warning that has the
    /// number of lost lines.
    fn write_to(self, mut out: impl Write, events: &Receiver<ReportEvent>, lost_lines: &AtomicU64) {
        let mut unreported = 0;
        while let Ok(first) = events.recv() {
            let mut text = String::new();
            let batch: Vec<ReportEvent> = std::iter::once(first).chain(events.try_iter().take(256)).collect();
            batch.iter().for_each(|event| self.line(&mut text, event));
            if text.is_empty() {
                continue;
            }
            let lines = text.lines().count() as u64;
            if unreported > 0 {
                let message = format!("{unreported} lines could not be written to the log");
                let at = SystemTime::now();
                let mut warning = String::new();
                let fields = Vec::new();
                self.line(&mut warning, &ReportEvent::Server { level: Level::Warn, message, fields, at });
                text.insert_str(0, &warning);
            }
            if out.write_all(text.as_bytes()).is_ok() {
                unreported = 0;
            } else {
                unreported += lines;
                lost_lines.fetch_add(lines, Ordering::Relaxed);
            }
        }
    }

    fn line(self, out: &mut String, event: &ReportEvent) {
        let (level, at, fields) = match event {
            ReportEvent::Flush(_) => return,
            ReportEvent::Ended { context, summary, at } => {
                (grade(summary.finish), *at, ended(context, summary))
            }
            ReportEvent::Loosened { context, schemas, at } => {
                let mut fields = about(context);
                fields.insert("unconstrained".into(), schemas.join(",").into());
                fields.insert("why".into(), "schema-cannot-be-compiled".into());
                (Level::Warn, *at, fields)
            }
            ReportEvent::Answered { context, status, micros, at } => {
                let level = match status {
                    500.. => Level::Error,
                    400.. => Level::Warn,
                    _ => Level::Debug,
                };
                let mut fields = about(context);
                fields.insert("status".into(), (*status).into());
                fields.insert("total_ms".into(), (*micros as f64 / 1e3).into());
                (level, *at, fields)
            }
            ReportEvent::Ignored { context, names, at } => {
                let mut fields = about(context);
                fields.insert("ignored_fields".into(), names.join(",").into());
                (Level::Warn, *at, fields)
            }
            ReportEvent::Clamped { context, limit, at } => {
                let mut fields = about(context);
                fields.insert("clamped".into(), limit.field.into());
                fields.insert("requested".into(), limit.requested.into());
                fields.insert("limit".into(), limit.limit.into());
                (Level::Info, *at, fields)
            }
            ReportEvent::Server { level, message, fields, at } => {
                let named = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
                let fields =
                    [("message".to_owned(), message.clone().into())].into_iter().chain(named).collect();
                (*level, *at, fields)
            }
        };
        if level < self.level {
            return;
        }
        match self.format {
            Format::Json => {
                let mut object = Map::new();
                object.insert("time".into(), rfc3339(at).into());
                object.insert("level".into(), level.name().into());
                object.extend(fields);
                out.push_str(&Value::Object(object).to_string());
            }
            Format::Text => {
                out.push_str(&format!("{} {:<5}", rfc3339(at), level.name()));
                for (name, value) in &fields {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    out.push_str(&format!(" {name}={value}"));
                }
            }
        }
        out.push('\n');
    }
}

fn grade(finish: Finish) -> Level {
    match finish {
        Finish::Failed(_) => Level::Error,
        Finish::Refused(_) => Level::Warn,
        _ => Level::Info,
    }
}

fn about(context: &RequestContext) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("request".into(), context.id.as_str().into());
    fields.insert("route".into(), context.route.as_str().into());
    fields.insert("key".into(), context.key_name.clone().map_or(context.key.into(), Value::from));
    if let Some(client) = context.client {
        fields.insert("client".into(), client.to_string().into());
    }
    if let Some((trace, _)) = context.parent {
        fields.insert("trace".into(), format!("{trace:032x}").into());
    }
    fields
}

fn ended(context: &RequestContext, summary: &Summary) -> Map<String, Value> {
    let times = &summary.timings;
    let ms = |from: Option<Nanos>, to: Option<Nanos>| match (from, to) {
        (Some(from), Some(to)) => json!(to.saturating_sub(from) as f64 / 1e6),
        _ => Value::Null,
    };
    let mut fields = about(context);
    fields.extend([
        ("answer".to_owned(), json!(summary.tag)),
        ("finish".to_owned(), summary.finish.to_string().into()),
        ("prompt_tokens".to_owned(), summary.prompt.into()),
        ("cached_tokens".to_owned(), summary.cached.into()),
        ("matched_tokens".to_owned(), summary.prefix.matched.into()),
        ("output_tokens".to_owned(), summary.outputs.into()),
        ("preemptions".to_owned(), summary.preemptions.into()),
        ("drafted".to_owned(), summary.drafted.into()),
        ("accepted".to_owned(), summary.accepted.into()),
        ("queued_ms".to_owned(), ms(Some(times.arrived), times.admitted)),
        ("ttft_ms".to_owned(), ms(Some(times.arrived), times.first_token)),
        ("total_ms".to_owned(), ms(Some(times.arrived), times.finished)),
    ]);
    if let Some(cache_end) = summary.prefix.cache_end {
        fields.insert("cache_end".to_owned(), cache_end.label().into());
    }
    if summary.dropped > 0 {
        fields.insert("dropped_tokens".to_owned(), summary.dropped.into());
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::clamped_limit::ClampedLimit;
    use std::{
        sync::{Arc, mpsc},
        time::UNIX_EPOCH,
    };

    /// A disk whose first `failures` writes fail because it is full.
    struct FullDisk<'a> {
        failures: u32,
        written: &'a mut String,
    }

    impl Write for FullDisk<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.failures > 0 {
                self.failures -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.written.push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_lost_to_a_full_disk_are_reported_once() {
        let (lost, mut written) = (AtomicU64::new(0), String::new());
        let log = Log { format: Format::Text, level: Level::Info };
        for (failures, lines) in [(1, 3), (0, 2), (0, 1)] {
            let (send, receive) = mpsc::channel();
            for _ in 0..lines {
                let (level, message, fields) = (Level::Info, "m".into(), Vec::new());
                send.send(ReportEvent::Server { level, message, fields, at: UNIX_EPOCH }).unwrap();
            }
            drop(send);
            log.write_to(FullDisk { failures, written: &mut written }, &receive, &lost);
        }
        assert_eq!((lost.load(Ordering::Relaxed), written.lines().count()), (3, 3));
        let (send, receive) = mpsc::sync_channel(0);
        let writer = std::thread::spawn(move || {
            let mut written = String::new();
            let disk = FullDisk { failures: 2, written: &mut written };
            log.write_to(disk, &receive, &AtomicU64::new(0));
            written
        });
        for _ in 0..4 {
            let (level, message, fields) = (Level::Info, "m".into(), Vec::new());
            send.send(ReportEvent::Server { level, message, fields, at: UNIX_EPOCH }).unwrap();
        }
        drop(send);
        let written = writer.join().unwrap();
        assert_eq!(written.matches("could not be written to the log").count(), 1, "{written}");
    }

    #[test]
    fn log_lines_are_single_and_filtered_by_level() {
        let context = Arc::new(RequestContext {
            id: "r1".into(),
            key: 2,
            route: "/v1/x".into(),
            parent: Some((5, 6)),
            ..RequestContext::default()
        });
        let event =
            |status| ReportEvent::Answered { context: context.clone(), status, micros: 1500, at: UNIX_EPOCH };
        let lines = |format, level| {
            let mut text = String::new();
            [200, 404, 500].iter().for_each(|status| Log { format, level }.line(&mut text, &event(*status)));
            text
        };
        assert_eq!(lines(Format::Text, Level::Debug).lines().count(), 3);
        assert_eq!(lines(Format::Text, Level::Warn).lines().count(), 2);
        assert_eq!(
            lines(Format::Text, Level::Error),
            "1970-01-01T00:00:00.000Z error request=r1 route=/v1/x key=2 trace=00000000000000000000000000000005 status=500 total_ms=1.5\n"
        );
        let schemas = vec!["tools[0].function.parameters".to_owned()];
        let mut text = String::new();
        let loosened = ReportEvent::Loosened { context: context.clone(), schemas, at: UNIX_EPOCH };
        Log { format: Format::Text, level: Level::Warn }.line(&mut text, &loosened);
        let answered = "unconstrained=tools[0].function.parameters why=schema-cannot-be-compiled\n";
        assert!(text.contains(" warn ") && text.ends_with(answered), "{text}");
        let limit = ClampedLimit { field: "max_tokens", requested: 32000, limit: 24123 };
        let mut text = String::new();
        let clamped = ReportEvent::Clamped { context: context.clone(), limit, at: UNIX_EPOCH };
        Log { format: Format::Text, level: Level::Info }.line(&mut text, &clamped);
        assert!(text.ends_with("clamped=max_tokens requested=32000 limit=24123\n"), "{text}");
        let server =
            |level| ReportEvent::Server { level, message: "m".into(), fields: Vec::new(), at: UNIX_EPOCH };
        let mut text = String::new();
        for level in [Level::Info, Level::Warn] {
            Log { format: Format::Json, level: Level::Warn }.line(&mut text, &server(level));
        }
        assert_eq!(text, "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"warn\",\"message\":\"m\"}\n");
        for line in lines(Format::Json, Level::Debug).lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["request"], "r1");
        }
    }
}
