//! Log-bucketed latency histogram with 1 % relative error and bounded memory.

use serde::Serialize;

/// Durations in nanoseconds, in geometric buckets of ratio 1.01. Memory grows with the value range
/// only.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: f64,
    most: u64,
}

/// Mean and percentiles in milliseconds, accurate to 1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    /// Arithmetic mean, exact.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum, exact.
    pub max: f64,
}

const WIDTH: f64 = 1.01;

impl Histogram {
    /// Adds one duration.
    pub fn add(&mut self, ns: u64) {
        let bucket = ((ns.max(1) as f64).ln() / WIDTH.ln()) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.total += 1;
        self.sum += ns as f64;
        self.most = self.most.max(ns);
    }

    /// The quantile `share` (0 to 1), in nanoseconds.
    pub fn at(&self, share: f64) -> f64 {
        let rank = (share * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return WIDTH.powf(bucket as f64 + 0.5).min(self.most as f64);
            }
        }
        self.most as f64
    }

    /// Mean, percentiles and maximum; all zero without values.
    pub fn percentiles(&self) -> Percentiles {
        if self.total == 0 {
            return Percentiles::default();
        }
        let ms = |share| self.at(share) / 1e6;
        Percentiles {
            count: self.total,
            mean: self.sum / self.total as f64 / 1e6,
            p50: ms(0.5),
            p90: ms(0.9),
            p95: ms(0.95),
            p99: ms(0.99),
            max: self.most as f64 / 1e6,
        }
    }

    /// Quantiles at 0, 1, …, 100 %, in nanoseconds; empty without values.
    pub fn curve(&self) -> Vec<f64> {
        match self.total {
            0 => Vec::new(),
            _ => (0..=100).map(|percent| self.at(f64::from(percent) / 100.0).round()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::histogram::Histogram;

    #[test]
    fn percentiles_are_right_to_one_percent() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|n| histogram.add(n * 1000));
        for share in [0.01, 0.5, 0.9, 0.99] {
            let exact = share * 1e8;
            assert!((histogram.at(share) / exact - 1.0).abs() < 0.011, "{share}");
        }
        assert_eq!(histogram.percentiles().max, 100.0);
    }
}
