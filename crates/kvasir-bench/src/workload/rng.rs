//! Seeded pseudo-random distributions for workloads: uniform, exponential, normal, log-normal,
//! gamma.

use kvasir_sample::{STRIDE, mix};

/// A counter-based generator (SplitMix64 style); equal seeds give equal workloads.
#[derive(Clone, Debug)]
pub struct WorkloadRng(u64);

impl WorkloadRng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x6B76_6173_6972))
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STRIDE);
        mix(self.0)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform integer in `low ..= high`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.unit() * (f64::from(high.max(low) - low) + 1.0)) as u32
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Standard normal (Box–Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Log-normal length with the given median and log standard deviation, at least 1.
    pub fn length(&mut self, median: u32, spread: f64) -> u32 {
        (f64::from(median) * (spread * self.normal()).exp()).round().clamp(1.0, 1e9) as u32
    }

    /// Gamma with the given shape and mean (Marsaglia–Tsang), for arrival gaps.
    ///
    /// Shape 1 is a Poisson process; smaller shapes are burstier.
    pub fn gamma(&mut self, shape: f64, mean: f64) -> f64 {
        if shape < 1.0 {
            // Gamma(k) = Gamma(k + 1) · U^(1/k).
            let shrink = (1.0 - self.unit()).powf(1.0 / shape);
            return self.gamma(shape + 1.0, mean * (shape + 1.0) / shape) * shrink;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && (1.0 - self.unit()).ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d * v * mean / shape;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::rng::WorkloadRng;

    #[test]
    fn arrival_gaps_have_the_requested_mean_and_spread() {
        for shape in [0.25, 1.0, 4.0] {
            let mut rng = WorkloadRng::new(1);
            let gaps: Vec<f64> = (0..200_000).map(|_| rng.gamma(shape, 2.0)).collect();
            let mean = gaps.iter().sum::<f64>() / 2e5;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 2e5;
            assert!((mean / 2.0 - 1.0).abs() < 0.03, "{shape}: {mean}");
            assert!((variance / (4.0 / shape) - 1.0).abs() < 0.1, "{shape}: {variance}");
        }
    }
}
