//! Downsampled time series of a run: throughput, running and waiting requests, KV slots in use.
//!
//! Fixed memory: at most `MOST` equal time bins. When time runs past the last bin, adjacent bins
//! merge and the bin width doubles.

use kvasir_engine::StepRecord;
use kvasir_exec::Step;
use serde_json::{Value, json};

/// Equal time bins over the run, of `width` nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    width: u64,
    bins: Vec<Bin>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    outputs: u64,
    prompts: u64,
    /// Sums over the bin's steps, and the number of steps.
    running: u64,
    waiting: u64,
    used: u64,
    steps: u64,
}

/// Contribution of one step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) outputs: u64,
    pub(crate) prompts: u64,
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) used: u64,
}

impl Sample {
    pub(crate) fn of(record: &StepRecord, step: &Step) -> Self {
        let sampled = step.batch.rows.iter().filter(|row| row.samples()).count();
        let ((_, prompts), _) = step.batch.counts();
        Self {
            outputs: sampled as u64,
            prompts: prompts as u64,
            running: record.running.into(),
            waiting: record.waiting.into(),
            used: (record.usage.held + record.usage.leased).into(),
        }
    }
}

const MOST: usize = 480;
const SMOOTH: u64 = 8;

impl Default for Series {
    fn default() -> Self {
        Self { width: 100_000, bins: Vec::new() }
    }
}

impl Series {
    fn halve(&mut self) {
        self.width *= 2;
        let merged = self.bins.chunks(2).map(|pair| pair.iter().fold(Bin::default(), Bin::and));
        self.bins = merged.collect();
    }

    /// All plots, smoothed, as JSON for the viewer page.
    pub(crate) fn drawn(&self) -> Vec<Value> {
        let mut series = self.clone();
        series.smooth();
        let plot = |(title, unit, points): Plot| json!({"title": title, "unit": unit, "points": points});
        series.plots().into_iter().map(plot).collect()
    }

    /// Merges bins until they hold `SMOOTH` steps on average; a rate over fewer is noise.
    pub(crate) fn smooth(&mut self) {
        let steps: u64 = self.bins.iter().map(|bin| bin.steps).sum();
        while self.bins.len() > 12 && (self.bins.len() as u64) * SMOOTH > steps {
            self.halve();
        }
    }

    pub(crate) fn add(&mut self, at: u64, sample: Sample) {
        while (at / self.width) as usize >= MOST {
            self.halve();
        }
        let bin = (at / self.width) as usize;
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, Bin::default());
        }
        if let Some(bin) = self.bins.get_mut(bin) {
            bin.outputs += sample.outputs;
            bin.prompts += sample.prompts;
            bin.running += sample.running;
            bin.waiting += sample.waiting;
            bin.used += sample.used;
            bin.steps += 1;
        }
    }

    /// All plots at the current resolution.
    pub(crate) fn plots(&self) -> Vec<Plot> {
        let seconds = self.width as f64 / 1e9;
        let plot = |value: &dyn Fn(&Bin) -> f64| {
            self.bins.iter().enumerate().map(|(i, bin)| (i as f64 * seconds, value(bin))).collect()
        };
        let mean = |sum: u64, bin: &Bin| sum as f64 / bin.steps.max(1) as f64;
        vec![
            ("output tokens per second", "tok/s", plot(&|bin| bin.outputs as f64 / seconds)),
            ("prompt tokens computed per second", "tok/s", plot(&|bin| bin.prompts as f64 / seconds)),
            ("requests running", "", plot(&|bin| mean(bin.running, bin))),
            ("requests waiting", "", plot(&|bin| mean(bin.waiting, bin))),
            ("slots in use", "", plot(&|bin| mean(bin.used, bin))),
        ]
    }
}

/// Title, unit and points `(seconds, value)`.
pub(crate) type Plot = (&'static str, &'static str, Vec<(f64, f64)>);

impl Bin {
    fn and(self, other: &Self) -> Self {
        Self {
            outputs: self.outputs + other.outputs,
            prompts: self.prompts + other.prompts,
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            used: self.used + other.used,
            steps: self.steps + other.steps,
        }
    }
}
