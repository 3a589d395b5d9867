//! Work in stretches, with the machine's limits measured between them: memory of a machine that is shared is twice as fast in one second as in the next.

use kvasir_cpu::Peaks;
use std::time::{Duration, Instant};

/// From here on a stretch is long.
const LONG: Duration = Duration::from_millis(250);

/// The stretches of one repetition.
pub(super) struct Stretches<M> {
    measure: M,
    started: Instant,
    /// What was measured before the first stretch, between any two, and after the last.
    peaks: Vec<Peaks>,
    /// How many pieces of work each had, and the seconds that they took.
    done: Vec<(u32, f64)>,
}

impl<M: Fn() -> Peaks> Stretches<M> {
    pub(super) fn new(measure: M) -> Self {
        Self { measure, started: Instant::now(), peaks: Vec::new(), done: Vec::new() }
    }

    pub(super) fn clear(&mut self) {
        self.peaks.clear();
        self.done.clear();
    }

    /// Time counts from here on.
    pub(super) fn begin(&mut self) {
        if self.done.len() == self.peaks.len() {
            self.peaks.push((self.measure)());
        }
        self.started = Instant::now();
    }

    /// Whether the stretch that was begun has taken so long that it should end after this piece of work.
    pub(super) fn is_long(&self) -> bool {
        self.started.elapsed() >= LONG
    }

    /// So many pieces were done since the stretch began.
    pub(super) fn end(&mut self, pieces: u32) {
        self.done.push((pieces, self.started.elapsed().as_secs_f64()));
        self.peaks.push((self.measure)());
    }

    pub(super) fn peaks(&self) -> &[Peaks] {
        &self.peaks
    }

    pub(super) fn seconds(&self) -> f64 {
        self.done.iter().map(|(_, seconds)| seconds).sum()
    }

    /// What all would have taken at the limits around each stretch; `all` says how long all of it takes at some limits.
    pub(super) fn least_seconds(&self, all: impl Fn(&Peaks) -> f64) -> f64 {
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
        let mut stretches = Stretches::new(|| {
            measured.set(measured.get() + 1);
            let bandwidth = [10.0, 10.0, 20.0, 40.0][measured.get() - 1];
            Peaks { bandwidth, int8: 1.0, bf16: 1.0, f32: 1.0 }
        });
        // Reading that counts and makes no token, then two stretches of tokens.
        for pieces in [0, 30, 10] {
            stretches.begin();
            stretches.end(pieces);
        }
        assert_eq!(measured.get(), 4);
        assert_eq!(stretches.peaks().len(), 4);
        assert!(stretches.seconds() > 0.0);
        // 600 bytes: three quarters of them at 15 a second, a quarter at 30.
        let least = stretches.least_seconds(|peaks| 600.0 / peaks.bandwidth);
        assert!((least - (450.0 / 15.0 + 150.0 / 30.0)).abs() < 1e-9, "{least}");
        stretches.clear();
        assert_eq!((stretches.peaks().len(), stretches.seconds()), (0, 0.0));
    }
}
