//! [`StepTimes`]: the measured time of a decode step as a function of the tokens that it feeds.
//!
//! On most devices a step of several tokens costs little more than one of a single token, up to a
//! point, and then grows by steps (tile sizes, caches, compute-bound kernels). So it is measured and
//! not assumed to be a line: an average per point, interpolated between points.

use crate::request::timings::Nanos;

/// Tokens per step at which times are kept.
const POINTS: [u32; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 64, 96, 128, 192, 256, 512];
/// Gain in tokens per second below which drafts are not worth the risk of a wrong estimate.
pub(crate) const LEAST_GAIN: f64 = 1.01;
/// Weight of a new observation.
const WEIGHT: f64 = 0.15;
/// Observations after which a point that was not seen again is forgotten: times drift with the
/// length of the contexts.
const FORGOTTEN_AFTER: u64 = 1500;

#[derive(Clone, Copy, Debug, Default)]
struct Point {
    /// Averages of the tokens fed and of the time.
    tokens: f64,
    ns: f64,
    seen: u32,
    newest: u64,
}

/// Measured decode step times by tokens fed.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTimes {
    points: [Point; POINTS.len()],
    observed: u64,
}

/// The point nearest to a number of tokens.
fn nearest(tokens: u32) -> usize {
    let above = POINTS.partition_point(|point| *point < tokens).min(POINTS.len() - 1);
    match above.checked_sub(1) {
        Some(below) if tokens - POINTS[below] < POINTS[above].saturating_sub(tokens) => below,
        _ => above,
    }
}

impl StepTimes {
    /// Adds a decode step that fed `tokens` and took `took`.
    pub(crate) fn observe(&mut self, tokens: u32, took: Nanos) {
        self.observed += 1;
        let (at, took) = (nearest(tokens), took as f64);
        let point = &mut self.points[at];
        if point.seen == 0 || self.observed - point.newest > FORGOTTEN_AFTER {
            *point = Point { tokens: f64::from(tokens), ns: took, seen: 0, newest: 0 };
        }
        // One stall must not close a point: it counts as twice the average at most.
        let took = took.min(2.0 * point.ns);
        let weight = WEIGHT.max(1.0 / f64::from(point.seen + 1));
        point.tokens += (f64::from(tokens) - point.tokens) * weight;
        point.ns += (took - point.ns) * weight;
        point.seen = point.seen.saturating_add(1);
        point.newest = self.observed;
    }

    fn known(&self, at: usize) -> Option<&Point> {
        let point = &self.points[at];
        (point.seen > 0 && self.observed - point.newest <= FORGOTTEN_AFTER).then_some(point)
    }

    /// Whether a step of about this many tokens was measured lately.
    pub(crate) fn is_known(&self, tokens: u32) -> bool {
        self.known(nearest(tokens)).is_some()
    }

    /// Predicted time of a step of `tokens`: interpolated between known points, constant beyond
    /// them. `None` if nothing is known.
    pub(crate) fn predict(&self, tokens: u32) -> Option<f64> {
        let (at, tokens) = (nearest(tokens), f64::from(tokens));
        let mut known = (0..POINTS.len()).map(|i| self.known(i));
        let mut above = (at..POINTS.len()).filter_map(|i| self.known(i));
        let above = above.find(|point| point.tokens >= tokens);
        let below = known.by_ref().take(at + 1).flatten().filter(|point| point.tokens <= tokens).last();
        match (below, above) {
            (Some(low), Some(high)) if high.tokens > low.tokens => {
                let share = (tokens - low.tokens) / (high.tokens - low.tokens);
                Some(low.ns + (high.ns.max(low.ns) - low.ns) * share)
            }
            (Some(one), _) | (None, Some(one)) => Some(one.ns),
            (None, None) => None,
        }
    }

    /// The most tokens of a step whose time is known, or can be found out at little risk.
    pub(crate) fn explored(&self) -> u32 {
        let largest = (0..POINTS.len()).rev().find(|at| self.known(*at).is_some());
        largest.map_or(4, |at| POINTS[(at + 2).min(POINTS.len() - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_interpolated_between_measured_points() {
        let mut times = StepTimes::default();
        assert_eq!(times.predict(3), None);
        (0..50).for_each(|_| times.observe(1, 1000));
        assert_eq!(times.predict(9), Some(1000.0), "unknown points look free, so that they are tried");
        (0..50).for_each(|_| times.observe(8, 2400));
        assert_eq!(times.predict(8), Some(2400.0));
        assert!(times.predict(4).is_some_and(|ns| (ns - 1600.0).abs() < 1.0));
        assert_eq!(times.explored(), 12);
    }

    #[test]
    fn a_stall_is_clipped_and_drift_is_followed() {
        let mut times = StepTimes::default();
        (0..50).for_each(|_| times.observe(4, 1000));
        times.observe(4, 1_000_000);
        assert!(times.predict(4).is_some_and(|ns| ns < 1200.0));
        (0..50).for_each(|_| times.observe(4, 1500));
        assert!(times.predict(4).is_some_and(|ns| ns > 1450.0));
        (0..1600).for_each(|_| times.observe(1, 900));
        assert!(!times.is_known(4) && times.is_known(1), "old points are forgotten");
    }

    #[test]
    fn every_number_of_tokens_has_a_nearest_point() {
        assert_eq!([1, 9, 10, 11, 30, 31, 1000].map(|n| POINTS[nearest(n)]), [1, 10, 10, 12, 28, 34, 512]);
    }
}
