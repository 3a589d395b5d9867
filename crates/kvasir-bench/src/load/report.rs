//! Accumulates latencies of a load test and reports TTFT, TPOT, ITL, throughput and goodput.

use crate::load::Pressure;
use crate::sim::histogram::{Histogram, Percentiles};
use serde::Serialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// Outcome and timings of one request.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Failure kind (HTTP status or keyword) and the server's message, if the request failed.
    pub(super) fault: Option<(String, String)>,
    pub(super) prompt: u64,
    pub(super) cached: u64,
    pub(super) outputs: u64,
    pub(super) queued: Duration,
    pub(super) ttft: Option<Duration>,
    pub(super) total: Duration,
    pub(super) text: String,
}

impl Ended {
    /// Time per output token (TPOT) after the first; `None` for fewer than two tokens.
    pub(super) fn tpot(&self) -> Option<Duration> {
        let gaps = u32::try_from(self.outputs.checked_sub(1)?).ok().filter(|gaps| *gaps > 0)?;
        Some(self.total.saturating_sub(self.ttft?) / gaps)
    }
}

/// Service-level objective (SLO) of one answer. Every bound that is set must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Goal {
    /// Bound on time to first token, in milliseconds.
    pub ttft: Option<f64>,
    /// Bound on time per output token after the first, in milliseconds.
    pub tpot: Option<f64>,
    /// Bound on end-to-end latency, in milliseconds.
    pub e2e: Option<f64>,
}

impl Goal {
    /// Parses and sets one bound: `ttft:200`, `tpot:50` or `e2e:5000`, in milliseconds.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        let bound = |ms: &str| ms.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0);
        let (name, ms) = text.split_once(':').unwrap_or((text, ""));
        let ms = bound(ms).ok_or_else(|| format!("`{text}` is not a bound like ttft:200"))?;
        match name {
            "ttft" => self.ttft = Some(ms),
            "tpot" => self.tpot = Some(ms),
            "e2e" | "e2el" => self.e2e = Some(ms),
            _ => return Err(format!("`{name}` is not one of ttft, tpot, e2e")),
        }
        Ok(self)
    }

    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn holds(&self, ended: &Ended) -> bool {
        let within = |bound: Option<f64>, took: Option<Duration>| match bound {
            Some(bound) => took.is_some_and(|took| took.as_secs_f64() * 1e3 <= bound),
            None => true,
        };
        // TPOT is undefined for one token; such an answer meets any TPOT bound.
        let tpot = ended.tpot().or((ended.outputs == 1).then_some(Duration::ZERO));
        within(self.ttft, ended.ttft) && within(self.tpot, tpot) && within(self.e2e, Some(ended.total))
    }
}

/// Results of a load test. Times in milliseconds; rates per second of the whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Title of the workload.
    pub workload: String,
    /// URL, route, model and context length of the server.
    pub server: Value,
    /// Maximum concurrent requests.
    pub concurrency: usize,
    /// Whether answers go on behind their end-of-sequence token, so that all have their full length.
    pub ignore_eos: bool,
    /// Wall time of the run, in seconds.
    pub seconds: f64,
    /// Successful answers.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Failures by kind (HTTP status or keyword): count, and the server's first message.
    pub faults: BTreeMap<String, (u64, String)>,
    /// Prompt tokens of all successful answers.
    pub prompt_tokens: u64,
    /// Prompt tokens served from the prefix cache.
    pub cached_tokens: u64,
    /// Output tokens of all successful answers.
    pub output_tokens: u64,
    /// Streamed events that contain text.
    pub events: u64,
    /// Successful answers per second.
    pub request_rate: f64,
    /// Output tokens per second.
    pub output_rate: f64,
    /// Prompt and output tokens per second.
    pub total_rate: f64,
    /// Highest number of text events within one second.
    pub best_second: u64,
    /// Highest number of concurrent requests observed.
    pub most_at_once: u64,
    /// Time to first token (TTFT).
    pub ttft: Percentiles,
    /// Time per output token (TPOT) after the first, per answer.
    pub tpot: Percentiles,
    /// Inter-token latency (ITL): gaps between events.
    pub itl: Percentiles,
    /// End-to-end latency: first byte sent to last byte read.
    pub e2e: Percentiles,
    /// Client-side queueing delay before a due request was sent.
    pub queued: Percentiles,
    /// Goodput; absent without a goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<Goodput>,
    /// Plot data for the report page.
    #[serde(skip)]
    pub plots: Value,
}

/// Goodput: answers that met the service-level objective.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Goodput {
    /// The objective.
    pub goal: Goal,
    /// Number of answers that met it.
    pub answers: u64,
    /// Such answers per second of the run.
    pub rate: f64,
    /// Share of all requests, failures included.
    pub share: f64,
}

/// Counters and histograms filled during a run.
#[derive(Debug, Default)]
pub(crate) struct Count {
    ended: Vec<(Duration, bool)>,
    faults: BTreeMap<String, (u64, String)>,
    good: Vec<Times>,
    prompt: u64,
    cached: u64,
    outputs: u64,
    events: u64,
    /// Text events per 100 ms bin since the start of the run.
    tenths: Vec<u64>,
    under_way: u64,
    most: u64,
    ttft: Histogram,
    tpot: Histogram,
    itl: Histogram,
    e2e: Histogram,
    queued: Histogram,
}

/// The times of one answer that a goal is checked against.
#[derive(Debug)]
struct Times(Ended);

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Count {
    pub(super) fn began(&mut self) {
        self.under_way += 1;
        self.most = self.most.max(self.under_way);
    }

    pub(super) fn gap(&mut self, gap: Duration) {
        self.itl.add(ns(gap));
    }

    pub(super) fn event(&mut self, at: Duration) {
        self.events += 1;
        let tenth = (at.as_millis() / 100) as usize;
        if self.tenths.len() <= tenth {
            self.tenths.resize(tenth + 1, 0);
        }
        if let Some(events) = self.tenths.get_mut(tenth) {
            *events += 1;
        }
    }

    pub(super) fn ended(&mut self, ended: &Ended) {
        self.under_way = self.under_way.saturating_sub(1);
        self.ended.push((ended.total, ended.fault.is_none()));
        self.queued.add(ns(ended.queued));
        if let Some((kind, message)) = &ended.fault {
            self.faults.entry(kind.clone()).or_insert_with(|| (0, message.clone())).0 += 1;
            return;
        }
        self.prompt += ended.prompt;
        self.cached += ended.cached;
        self.outputs += ended.outputs;
        ended.ttft.iter().for_each(|time| self.ttft.add(ns(*time)));
        ended.tpot().iter().for_each(|time| self.tpot.add(ns(*time)));
        self.e2e.add(ns(ended.total));
        let Ended { outputs, ttft, total, .. } = *ended;
        self.good.push(Times(Ended { outputs, ttft, total, ..Ended::default() }));
    }

    pub(super) fn report(
        &self,
        workload: String,
        server: Value,
        pressure: Pressure,
        took: Duration,
    ) -> Report {
        let seconds = took.as_secs_f64();
        let completed = self.good.len() as u64;
        let failed = self.ended.len() as u64 - completed;
        let best_second = self.tenths.windows(10).map(|second| second.iter().sum()).max();
        let met = self.good.iter().filter(|times| pressure.goal.holds(&times.0)).count() as u64;
        let goodput = (!pressure.goal.is_none()).then(|| Goodput {
            goal: pressure.goal,
            answers: met,
            rate: met as f64 / seconds,
            share: met as f64 / (self.ended.len().max(1)) as f64,
        });
        let mut report = Report {
            workload,
            server,
            concurrency: pressure.concurrency,
            ignore_eos: pressure.ignore_eos,
            seconds,
            completed,
            failed,
            faults: self.faults.clone(),
            prompt_tokens: self.prompt,
            cached_tokens: self.cached,
            output_tokens: self.outputs,
            events: self.events,
            request_rate: completed as f64 / seconds,
            output_rate: self.outputs as f64 / seconds,
            total_rate: (self.prompt + self.outputs) as f64 / seconds,
            best_second: best_second.unwrap_or(self.events),
            most_at_once: self.most,
            ttft: self.ttft.percentiles(),
            tpot: self.tpot.percentiles(),
            itl: self.itl.percentiles(),
            e2e: self.e2e.percentiles(),
            queued: self.queued.percentiles(),
            goodput,
            plots: Value::Null,
        };
        report.plots = self.plots(&report);
        report
    }

    fn plots(&self, report: &Report) -> Value {
        let width = (self.tenths.len() / 240).max(1);
        let rate = |bin: &[u64]| bin.iter().sum::<u64>() as f64 * 10.0 / bin.len() as f64;
        let points: Vec<(f64, f64)> = self
            .tenths
            .chunks(width)
            .enumerate()
            .map(|(i, bin)| ((i * width) as f64 / 10.0, rate(bin)))
            .collect();
        let curve = |name: &str, histogram: &Histogram| json!({"name": name, "values": histogram.curve()});
        json!({
            "numbers": report.totals(),
            "table": {"head": TIME_COLUMNS, "rows": report.times()},
            "series": [{"title": "text events per second", "unit": "per second", "points": points}],
            "percentiles": [
                curve("time to first token", &self.ttft), curve("between events", &self.itl),
                curve("per token", &self.tpot), curve("whole answer", &self.e2e),
            ],
        })
    }
}

impl Report {
    /// Labeled metrics, formatted for terminal output.
    pub fn numbers(&self) -> Vec<(String, String)> {
        let mut rows = self.totals();
        let line = |row: Vec<String>| {
            let parts =
                TIME_COLUMNS.iter().zip(&row).skip(1).map(|(column, value)| format!("{column} {value}"));
            (row[0].clone(), parts.collect::<Vec<_>>().join(", "))
        };
        // After the totals of all answers, before goodput and failures.
        let at = rows.iter().position(|(name, _)| is_outcome(name)).unwrap_or(rows.len());
        rows.splice(at..at, self.times().into_iter().map(line));
        rows
    }

    /// Counts and rates.
    fn totals(&self) -> Vec<(String, String)> {
        let mut rows = vec![
            (
                "answers".into(),
                format!("{} in {:.2} s, {} failed", self.completed, self.seconds, self.failed),
            ),
            ("requests per second".into(), format!("{:.2}", self.request_rate)),
            (
                "output tokens per second".into(),
                format!("{:.1} (best second {} events)", self.output_rate, self.best_second),
            ),
            ("all tokens per second".into(), format!("{:.1}", self.total_rate)),
            (
                "prompt tokens".into(),
                format!("{}, {} of them cached", self.prompt_tokens, self.cached_tokens),
            ),
            ("output tokens".into(), format!("{} in {} events", self.output_tokens, self.events)),
            ("at once at most".into(), self.most_at_once.to_string()),
        ];
        if let Some(good) = &self.goodput {
            let text =
                format!("{} answers, {:.2} per second, {:.1} %", good.answers, good.rate, good.share * 100.0);
            rows.push(("goodput".into(), text));
        }
        rows.extend(
            self.faults
                .iter()
                .map(|(kind, (n, message))| (format!("failed: {kind}"), format!("{n} times: {message}"))),
        );
        rows
    }

    /// Latencies, a row of [`TIME_COLUMNS`] each.
    fn times(&self) -> Vec<Vec<String>> {
        let row = |(name, p): (&str, &Percentiles)| {
            let values = [p.mean, p.p50, p.p90, p.p99, p.max].map(|value| format!("{value:.2}"));
            [name.to_owned()].into_iter().chain(values).collect()
        };
        let kinds = [
            ("time to first token, ms", &self.ttft),
            ("time per output token, ms", &self.tpot),
            ("between events, ms", &self.itl),
            ("whole answer, ms", &self.e2e),
            ("waited to be sent, ms", &self.queued),
        ];
        kinds.into_iter().map(row).collect()
    }
}

/// Columns of the table of latencies.
const TIME_COLUMNS: [&str; 6] = ["", "mean", "p50", "p90", "p99", "most"];

/// Whether a metric is listed after the latencies.
fn is_outcome(name: &str) -> bool {
    name == "goodput" || name.starts_with("failed: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(ttft: u64, total: u64, outputs: u64) -> Ended {
        let ms = Duration::from_millis;
        Ended { ttft: Some(ms(ttft)), total: ms(total), outputs, ..Ended::default() }
    }

    #[test]
    fn goodput_checks_every_answer_against_its_goals() {
        let goal = Goal::default().with("ttft:100").unwrap().with("tpot:10").unwrap();
        assert!(goal.holds(&ended(100, 200, 11)));
        assert!(!goal.holds(&ended(101, 200, 11)));
        assert!(!goal.holds(&ended(50, 200, 11)));
        assert!(goal.holds(&ended(50, 50, 1)), "one token has no gaps");
        assert!(Goal::default().with("ttft").is_err() && Goal::default().with("itl:1").is_err());
        assert!(Goal::default().with("ttft:-1").is_err());
    }

    #[test]
    fn failures_count_as_requests_and_not_as_answers() {
        let mut count = Count::default();
        (0..3).for_each(|_| count.began());
        count.ended(&ended(10, 110, 11));
        count.ended(&ended(200, 300, 11));
        count.ended(&Ended { fault: Some(("429".into(), "full".into())), ..Ended::default() });
        (0..30).for_each(|i| count.event(Duration::from_millis(i * 100)));
        let goal = Goal::default().with("ttft:100").unwrap();
        let pressure = Pressure { concurrency: 8, goal, ignore_eos: true };
        let report = count.report("w".into(), Value::Null, pressure, Duration::from_secs(2));
        assert_eq!((report.completed, report.failed, report.most_at_once), (2, 1, 3));
        assert_eq!(report.faults["429"], (1, "full".into()));
        assert_eq!(report.best_second, 10);
        let good = report.goodput.unwrap();
        assert_eq!((good.answers, good.rate), (1, 0.5));
        assert!((good.share - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(report.output_rate, 11.0);
    }
}
