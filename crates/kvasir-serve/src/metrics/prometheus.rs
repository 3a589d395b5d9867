//! Lock-free metric types (counter, gauge, histogram) and Prometheus text exposition.
//!
//! All atomics are `Relaxed`: each value stands alone, and a scrape needs no consistent snapshot.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

/// A monotonic counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn cell(&self) -> &AtomicU64 {
        &self.0
    }
}

/// A gauge.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Sets it to the maximum of its value and `n`.
    pub(crate) fn set_max(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn cell(&self) -> &AtomicU64 {
        &self.0
    }
}

/// A histogram with fixed bucket bounds. Values are integers in units of `1 / per`.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [u64],
    /// Count per bucket (not cumulative); the last bucket is unbounded.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
    per: f64,
}

/// Latency buckets from 1 ms to minutes, in nanoseconds.
pub(crate) const REQUEST_BUCKETS: &[u64] = &[
    1_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    40_000_000,
    80_000_000,
    160_000_000,
    320_000_000,
    640_000_000,
    1_280_000_000,
    2_560_000_000,
    5_120_000_000,
    10_240_000_000,
    20_480_000_000,
    40_960_000_000,
    81_920_000_000,
    163_840_000_000,
    327_680_000_000,
];

/// Per-token latency buckets, in nanoseconds.
pub(crate) const TOKEN_BUCKETS: &[u64] = &[
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    150_000_000,
    200_000_000,
    300_000_000,
    500_000_000,
    750_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
];

/// Token count buckets.
pub(crate) const COUNT_BUCKETS: &[u64] =
    &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];

/// Nanoseconds in a second.
pub(crate) const NANOS_PER_SECOND: f64 = 1e9;

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64], per: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), per }
    }

    pub(crate) fn observe(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// The sum of all values.
    pub(super) fn sum(&self) -> f64 {
        self.sum.load(Ordering::Relaxed) as f64 / self.per
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = &AtomicU64> {
        self.counts.iter().chain([&self.sum])
    }
}

/// Prefix of metric names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// `kvasir:`.
    #[default]
    Own,
    /// `vllm:`, for gateways and dashboards made for vLLM.
    Vllm,
    /// `kvasir:`, and the families of llama.cpp's server under its names.
    LlamaCpp,
}

impl Names {
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Own | Self::LlamaCpp => "kvasir:",
            Self::Vllm => "vllm:",
        }
    }
}

/// Writer of Prometheus' text format. Every name begins with `prefix`.
pub(crate) struct TextExposition {
    pub(crate) text: String,
    prefix: &'static str,
    /// Labels of every sample, as `a="b",c="d"`.
    labels: String,
}

/// Escapes a label value.
pub(crate) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl TextExposition {
    pub(crate) fn new(prefix: &'static str, model: &str) -> Self {
        Self { text: String::new(), prefix, labels: format!("model_name=\"{}\"", escaped(model)) }
    }

    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ =
            writeln!(self.text, "# HELP {}{name} {help}\n# TYPE {}{name} {kind}", self.prefix, self.prefix);
    }

    fn line(&mut self, name: &str, more: &str, value: f64) {
        let Self { text, prefix, labels } = self;
        let comma = if more.is_empty() { "" } else { "," };
        let _ = writeln!(text, "{prefix}{name}{{{labels}{comma}{more}}} {value}");
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.begin(name, "gauge", help);
        self.line(name, "", value);
    }

    /// An info metric: a gauge of 1 whose labels carry the information.
    pub(crate) fn info(&mut self, name: &str, help: &str, labels: &str) {
        self.begin(name, "gauge", help);
        self.line(name, labels, 1.0);
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help, [(String::new(), value)]);
    }

    /// One gauge per set of additional labels.
    pub(crate) fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, f64)>) {
        self.begin(name, "gauge", help);
        for (labels, value) in values {
            self.line(name, &labels, value);
        }
    }

    /// One counter per set of additional labels.
    pub(crate) fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (String, u64)>,
    ) {
        self.begin(name, "counter", help);
        for (labels, value) in values {
            self.line(name, &labels, value as f64);
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.begin(name, "histogram", help);
        let mut sum = 0;
        for (at, count) in histogram.counts.iter().enumerate() {
            sum += count.load(Ordering::Relaxed);
            let bound = histogram.bounds.get(at).map(|bound| *bound as f64 / histogram.per);
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            self.line(&format!("{name}_bucket"), &format!("le=\"{bound}\""), sum as f64);
        }
        self.line(&format!("{name}_sum"), "", histogram.sum.load(Ordering::Relaxed) as f64 / histogram.per);
        // Summed from the buckets, so that both agree under concurrent updates.
        self.line(&format!("{name}_count"), "", sum as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_is_prometheus_text() {
        let histogram = Histogram::new(&[1_000_000, 1_000_000_000], NANOS_PER_SECOND);
        [500_000, 1_000_000, 2_000_000, 5_000_000_000].iter().for_each(|ns| histogram.observe(*ns));
        let mut page = TextExposition::new("kvasir:", "a\"b");
        page.gauge("running", "Who runs.", 2.0);
        page.histogram("took_seconds", "How long.", &histogram);
        assert_eq!(
            page.text,
            "# HELP kvasir:running Who runs.\n# TYPE kvasir:running gauge\nkvasir:running{model_name=\"a\\\"b\"} 2\n\
             # HELP kvasir:took_seconds How long.\n# TYPE kvasir:took_seconds histogram\n\
             kvasir:took_seconds_bucket{model_name=\"a\\\"b\",le=\"0.001\"} 2\n\
             kvasir:took_seconds_bucket{model_name=\"a\\\"b\",le=\"1\"} 3\n\
             kvasir:took_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 4\n\
             kvasir:took_seconds_sum{model_name=\"a\\\"b\"} 5.0035\n\
             kvasir:took_seconds_count{model_name=\"a\\\"b\"} 4\n"
        );
    }
}
