//! Timed segments of a repetition, with the machine's limits measured before and after each.
//!
//! Memory bandwidth of a shared machine can change by a factor of two within seconds. The roofline
//! time therefore averages the limits on both sides of each segment.

use kvasir_cpu::MachineLimits;
use std::time::{Duration, Instant};

/// A segment ends at the first step boundary after this duration.
const LONG: Duration = Duration::from_millis(250);

/// The segments of one repetition.
pub(crate) struct Segments<M> {
    measure: M,
    started: Instant,
    /// Limits measured before the first segment, between segments, and after the last.
    peaks: Vec<MachineLimits>,
    /// Per segment: number of steps, and duration in seconds.
    done: Vec<(u32, f64)>,
}

impl<M: Fn() -> Option<MachineLimits>> Segments<M> {
    pub(super) fn new(measure: M) -> Self {
        Self { measure, started: Instant::now(), peaks: Vec::new(), done: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.peaks.clear();
        self.done.clear();
    }

    /// Starts a segment; measures the limits first unless the last segment's end already did.
    pub(super) fn begin(&mut self) {
        if self.done.len() == self.peaks.len() {
            self.peaks.extend((self.measure)());
        }
        self.started = Instant::now();
    }

    /// Whether the running segment has lasted for `LONG` and should end after this step.
    pub(super) fn is_long(&self) -> bool {
        self.started.elapsed() >= LONG
    }

    /// Ends the segment after `pieces` steps and measures the limits.
    pub(super) fn end(&mut self, pieces: u32) {
        self.done.push((pieces, self.started.elapsed().as_secs_f64()));
        self.peaks.extend((self.measure)());
    }

    pub(super) fn peaks(&self) -> &[MachineLimits] {
        &self.peaks
    }

    pub(super) fn seconds(&self) -> f64 {
        self.done.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Roofline time of the repetition: `all(limits)` weighted by steps, with the mean speed of
    /// both sides.
    pub(super) fn least_seconds(&self, all: impl Fn(&MachineLimits) -> f64) -> f64 {
        let pieces: u32 = self.done.iter().map(|(pieces, _)| pieces).sum();
        let around = self.peaks.windows(2).zip(&self.done);
        let of_each = around.map(|(around, (pieces, _))| {
            let speed = around.iter().map(|peaks| 1.0 / all(peaks)).sum::<f64>() / 2.0;
            f64::from(*pieces) / speed
        });
        of_each.sum::<f64>() / f64::from(pieces.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn each_stretch_counts_against_the_limits_around_it() {
        let measured = Cell::new(0);
        let mut segments = Segments::new(|| {
            measured.set(measured.get() + 1);
            let bandwidth = [10.0, 10.0, 20.0, 40.0][measured.get() - 1];
            Some(MachineLimits { bandwidth, integer: 1.0, bf16: 1.0, f32: 1.0 })
        });
        // A timed prefill that yields no token, then two segments of decode steps.
        for pieces in [0, 30, 10] {
            segments.begin();
            segments.end(pieces);
        }
        assert_eq!(measured.get(), 4);
        assert_eq!(segments.peaks().len(), 4);
        assert!(segments.seconds() > 0.0);
        // 600 bytes: three quarters of them at 15 a second, a quarter at 30.
        let least = segments.least_seconds(|peaks| 600.0 / peaks.bandwidth);
        assert!((least - (450.0 / 15.0 + 150.0 / 30.0)).abs() < 1e-9, "{least}");
        segments.clear();
        assert_eq!((segments.peaks().len(), segments.seconds()), (0, 0.0));
    }
}
