//! `FleetSeries`: time series per replica, which the viewer page draws as heat maps: queue, running
//! requests, prefix hit rate, K/V transfers and failures.
//!
//! Memory is bounded by [`MAX_ROWS`] rows of [`MAX_BINS`] equal time bins. With more replicas, a
//! row is the mean of several consecutive ones. In longer runs, adjacent bins merge.

use kvasir_engine::{Nanos, Role};
use serde_json::{Value, json};
use std::ops::Range;

const MAX_BINS: usize = 240;
const MAX_ROWS: usize = 128;

/// Sums over the events of one time bin of a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaSample {
    pub(crate) steps: u64,
    /// Waiting and running requests, summed over the steps.
    pub(crate) waiting: u64,
    pub(crate) running: u64,
    /// Prompt tokens of admitted requests, and the cached ones among them.
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    /// Bytes of K and V sent and received.
    pub(crate) transferred_bytes: u64,
    /// Nanoseconds from failures to the ends of the restarts.
    pub(crate) down_ns: u64,
}

impl ReplicaSample {
    fn add(&mut self, other: Self) {
        self.steps += other.steps;
        self.waiting += other.waiting;
        self.running += other.running;
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.transferred_bytes += other.transferred_bytes;
        self.down_ns += other.down_ns;
    }
}

/// Time bins of `bin_ns` nanoseconds per row.
#[derive(Clone, Debug)]
pub(crate) struct FleetSeries {
    bin_ns: u64,
    /// Replicas per row.
    group: usize,
    roles: Vec<Role>,
    rows: Vec<Vec<ReplicaSample>>,
}

impl FleetSeries {
    pub(crate) fn new(roles: Vec<Role>) -> Self {
        let group = roles.len().div_ceil(MAX_ROWS).max(1);
        let rows = vec![Vec::new(); roles.len().div_ceil(group)];
        Self { bin_ns: 1_000_000, group, roles, rows }
    }

    pub(crate) fn add(&mut self, replica: usize, at: Nanos, sample: ReplicaSample) {
        while (at / self.bin_ns) as usize >= MAX_BINS {
            self.bin_ns *= 2;
            for row in &mut self.rows {
                let merge = |pair: &[ReplicaSample]| {
                    let mut sum = ReplicaSample::default();
                    pair.iter().for_each(|bin| sum.add(*bin));
                    sum
                };
                *row = row.chunks(2).map(merge).collect();
            }
        }
        let bin = (at / self.bin_ns) as usize;
        let Some(row) = self.rows.get_mut(replica / self.group) else { return };
        if row.len() <= bin {
            row.resize(bin + 1, ReplicaSample::default());
        }
        row[bin].add(sample);
    }

    /// Adds the time from a failure to the end of the restart.
    pub(crate) fn add_down(&mut self, replica: usize, from: Nanos, to: Nanos) {
        // Merges bins up to `to` first, so that their width is constant in the loop.
        self.add(replica, to, ReplicaSample::default());
        let mut at = from;
        while at < to {
            let end = to.min((at / self.bin_ns + 1) * self.bin_ns);
            self.add(replica, at, ReplicaSample { down_ns: end - at, ..ReplicaSample::default() });
            at = end;
        }
    }

    /// The heat maps up to `now` as JSON. `kvasir_view` documents the format.
    pub(crate) fn drawn(&self, now: Nanos) -> Value {
        let bins = self.rows.iter().map(Vec::len).max().unwrap_or(0).min((now / self.bin_ns) as usize + 1);
        let names: Vec<String> = (0..self.rows.len()).map(|row| self.name(row)).collect();
        // `value` gets a bin and the number of replicas of its row.
        let values = |value: &dyn Fn(&ReplicaSample, f64) -> Option<f64>| -> Vec<Vec<Option<f64>>> {
            let empty = ReplicaSample::default();
            let row = |(number, row): (usize, &Vec<ReplicaSample>)| {
                let replicas = self.replicas(number).len() as f64;
                (0..bins).map(|bin| value(row.get(bin).unwrap_or(&empty), replicas).map(rounded)).collect()
            };
            self.rows.iter().enumerate().map(row).collect()
        };
        let per = |sum: u64, of: u64| (of > 0).then(|| sum as f64 / of as f64);
        let seconds = self.bin_ns as f64 / 1e9;
        let mut maps = vec![
            json!({"title": "Queue", "unit": "requests", "rows": values(&|bin, _| per(bin.waiting, bin.steps))}),
            json!({"title": "Running", "unit": "requests", "rows": values(&|bin, _| per(bin.running, bin.steps))}),
            json!({"title": "Prefix hit rate", "unit": "%", "max": 100,
                "rows": values(&|bin, _| per(100 * bin.cached, bin.prompt))}),
        ];
        let any = |value: fn(&ReplicaSample) -> u64| self.rows.iter().flatten().any(|bin| value(bin) > 0);
        if any(|bin| bin.transferred_bytes) {
            let rate = |bin: &ReplicaSample, replicas: f64| {
                (bin.transferred_bytes > 0).then(|| bin.transferred_bytes as f64 / 1e6 / seconds / replicas)
            };
            maps.push(json!({"title": "K/V transfers", "unit": "MB/s", "rows": values(&rate)}));
        }
        if any(|bin| bin.down_ns) {
            let share = |bin: &ReplicaSample, replicas: f64| {
                (bin.down_ns > 0).then(|| 100.0 * bin.down_ns as f64 / self.bin_ns as f64 / replicas)
            };
            maps.push(json!({"title": "Down", "unit": "%", "max": 100, "rows": values(&share)}));
        }
        json!({"seconds": seconds, "replicas": names, "maps": maps})
    }

    /// The replicas of a row; the last row may have fewer than the others.
    fn replicas(&self, row: usize) -> Range<usize> {
        row * self.group..((row + 1) * self.group).min(self.roles.len())
    }

    /// Name of a row: its replicas, and the role of the first if roles differ.
    fn name(&self, row: usize) -> String {
        let Range { start: first, end } = self.replicas(row);
        let last = end - 1;
        let number = if first == last { first.to_string() } else { format!("{first} to {last}") };
        match self.roles.get(first) {
            Some(role) if self.roles.iter().any(|other| other != role) => format!("{number}, {role}"),
            _ => number,
        }
    }
}

/// Rounded to three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_and_rows_merge_and_keep_their_sums() {
        let mut series = FleetSeries::new(vec![Role::Both; 300]);
        let sample =
            ReplicaSample { steps: 1, waiting: 2, prompt: 10, cached: 5, ..ReplicaSample::default() };
        for second in 0..100 {
            (0..300).for_each(|replica| series.add(replica, second * 1_000_000_000, sample));
        }
        series.add_down(7, 3_000_000_000, 90_500_000_000);
        assert!(series.rows.len() <= MAX_ROWS && series.rows.iter().all(|row| row.len() <= MAX_BINS));
        let sum = |value: fn(&ReplicaSample) -> u64| series.rows.iter().flatten().map(value).sum::<u64>();
        assert_eq!((sum(|bin| bin.steps), sum(|bin| bin.cached)), (30_000, 150_000));
        assert_eq!(sum(|bin| bin.down_ns), 87_500_000_000);
        let drawn = series.drawn(u64::MAX);
        assert_eq!(drawn["replicas"][1], "3 to 5");
        let titles: Vec<_> = drawn["maps"].as_array().unwrap().iter().map(|map| &map["title"]).collect();
        assert_eq!(titles, ["Queue", "Running", "Prefix hit rate", "Down"]);
        assert_eq!(drawn["maps"][2]["rows"][0][0], 50.0);
    }

    #[test]
    fn the_last_row_is_the_mean_of_its_own_replicas() {
        // 64 rows of two replicas, and one of a single replica.
        let mut series = FleetSeries::new(vec![Role::Both; 129]);
        series.add_down(128, 0, 1_000_000);
        series.add_down(0, 0, 1_000_000);
        let drawn = series.drawn(1_000_000);
        assert_eq!(drawn["replicas"][64], "128");
        let rows = &drawn["maps"][3]["rows"];
        assert_eq!((&rows[64][0], &rows[0][0]), (&json!(100.0), &json!(50.0)));
    }
}
