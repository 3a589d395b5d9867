//! Online cost model of a step: exponentially weighted linear regressions of decode time over batch
//! size and of prefill time per token over context depth.
//!
//! `decode_ns = step + row * (rows - 1)`, `prefill_ns per token = token + depth * position / 1000`
//!
//! Decode-only steps fit the first line. What a prefill or mixed step takes beyond the predicted
//! decode time fits the second, weighted by chunk length. Outliers are clipped to twice the
//! prediction once the fit has clips. The result is `Costs`, which `Chunked` uses to size prefill
//! chunks against a step-time target.

use crate::request::timings::Nanos;
use crate::scheduler::limits::Costs;
use kvasir_exec::Batch;

/// Weighted linear regression with exponential forgetting.
#[derive(Clone, Debug)]
struct Regression {
    /// Forgetting factor per point of weight 1.
    decay: f64,
    /// Decayed sums: weight, x, y, x², x·y.
    sums: [f64; 5],
}

impl Regression {
    const fn new(decay: f64) -> Self {
        Self { decay, sums: [0.0; 5] }
    }

    /// Adds a point of weight `weight`.
    fn observe(&mut self, x: f64, y: f64, weight: f64) {
        let (point, remaining) = ([1.0, x, y, x * x, x * y], self.decay.powf(weight));
        self.sums.iter_mut().zip(point).for_each(|(sum, one)| *sum = *sum * remaining + one * weight);
    }

    /// Intercept and slope, both clamped to be non-negative; zeros without data.
    fn fit(&self) -> (f64, f64) {
        let [n, x, y, xx, xy] = self.sums;
        if n <= 0.0 {
            return (0.0, 0.0);
        }
        let spread = n * xx - x * x;
        let slope = if spread > 1e-9 * n * xx { ((n * xy - x * y) / spread).max(0.0) } else { 0.0 };
        match (y - slope * x) / n {
            base if base < 0.0 && xx > 0.0 => (0.0, xy / xx),
            base => (base, slope),
        }
    }

    /// The fit scaled by the ratio of recent observations to its prediction: shape from the long
    /// history, level from the short.
    fn fit_rescaled_to(&self, recent: &Self) -> (f64, f64) {
        let ((base, slope), [n, x, y, ..]) = (self.fit(), recent.sums);
        let expected = base * n + slope * x;
        let times = if expected > 0.0 { y / expected } else { 1.0 };
        (base * times, slope * times)
    }
}

/// Learns step, decode-row and prefill-token costs from finished steps.
#[derive(Clone, Debug)]
pub(crate) struct CostMeter {
    /// Decode-only step time over rows beyond the first.
    decodes: Regression,
    /// Prefill time per token over context depth in thousands. The slope belongs to model and
    /// machine, so its history spans several prompts.
    tokens: Regression,
    /// The same with a short history, for the current level.
    tokens_now: Regression,
    /// Duration of the last step that ran prompts only.
    prefill: Nanos,
}

impl Default for CostMeter {
    fn default() -> Self {
        Self {
            decodes: Regression::new(0.98),
            tokens: Regression::new(0.98),
            tokens_now: Regression::new(0.8),
            prefill: 0,
        }
    }
}

/// Chunk length, in tokens, at which a point has full weight.
const FULL_WEIGHT_CHUNK: f64 = 64.0;
/// Accumulated weight after which outliers are clipped to twice the prediction, so that one stall
/// does not distort the fit.
const CLIP_FROM_WEIGHT: f64 = 8.0;

impl CostMeter {
    /// Adds a finished step that took `took` on the device.
    pub(crate) fn observe(&mut self, batch: &Batch, took: Nanos) {
        let ((_, tokens), (rows, _)) = batch.counts();
        if tokens > 0 && rows == 0 {
            self.prefill = took;
        }
        // The slope is per additional row, so the first row belongs to the intercept.
        let (more, took) = (rows.saturating_sub(1) as f64, took as f64);
        let (base, slope) = self.decodes.fit();
        let decodes = base + slope * more;
        if tokens == 0 {
            let most = if self.decodes.sums[0] > CLIP_FROM_WEIGHT { 2.0 * decodes } else { took };
            return self.decodes.observe(more, took.min(most), 1.0);
        }
        let prompts = batch.rows.iter().filter(|row| row.kind.is_prefill());
        let longest = prompts.clone().map(|row| row.tokens.len).max().map_or(0.0, f64::from);
        let weighted_depths = prompts.map(|row| {
            let n = f64::from(row.tokens.len);
            n * (f64::from(row.cached) + n / 2.0)
        });
        let n = tokens as f64;
        // Short prefill-only steps are bound by reading the weights, which is free beside decodes:
        // no information.
        if rows == 0 && longest < FULL_WEIGHT_CHUNK {
            return;
        }
        let decodes = if rows == 0 { 0.0 } else { decodes };
        let (depth, each) = (weighted_depths.sum::<f64>() / n / 1000.0, (took - decodes).max(0.0) / n);
        let (base, slope) = self.tokens.fit_rescaled_to(&self.tokens_now);
        let clips = self.tokens.sums[0] > CLIP_FROM_WEIGHT;
        let each = each.min(if clips { 2.0 * (base + slope * depth) } else { each });
        // In short chunks fixed costs dominate, and several short prompts hide behind the weight
        // reads of decodes. A point counts quadratically in the longest chunk, so that they do not
        // distort the estimate for long prompts.
        let weight = (longest / FULL_WEIGHT_CHUNK).min(1.0).powi(2);
        self.tokens.observe(depth, each, weight);
        self.tokens_now.observe(depth, each, weight);
    }

    /// Current estimates; zeros until learned.
    pub(crate) fn costs(&self) -> Costs {
        let (step, row) = self.decodes.fit();
        let (token, depth) = self.tokens.fit_rescaled_to(&self.tokens_now);
        Costs {
            step_ns: step as u64,
            row_ns: row as u64,
            token_ns: token as u64,
            depth_ns: depth as u64,
            prefill_ns: self.prefill,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_exec::{BatchRow, RowKind};
    use kvasir_kv::Span;

    fn batch(prompt: u32, cached: u32, decodes: usize) -> Batch {
        let row = |kind, len| BatchRow { kind, tokens: Span { start: 0, len }, ..BatchRow::default() };
        let mut batch = Batch::default();
        if prompt > 0 {
            batch.rows.push(BatchRow { cached, ..row(RowKind::Prefill, prompt) });
        }
        batch.rows.extend((0..decodes).map(|_| row(RowKind::Decode, 1)));
        batch
    }

    #[test]
    fn linear_device_costs_are_learned() {
        let mut meter = CostMeter::default();
        for i in 0..200 {
            let rows = 1 + i % 7;
            meter.observe(&batch(0, 0, rows), 1000 + 50 * (rows as u64 - 1));
        }
        for i in 1..50 {
            meter.observe(&batch(i * 3, 0, 2), 1050 + 20 * (i as u64 * 3));
        }
        let costs = meter.costs();
        assert!((990..=1010).contains(&costs.step_ns), "{costs:?}");
        assert!((48..=52).contains(&costs.row_ns), "{costs:?}");
        assert!((19..=21).contains(&costs.token_ns) && costs.depth_ns < 3, "{costs:?}");
    }

    #[test]
    fn one_long_prompt_does_not_outweigh_later_chunks() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.observe(&batch(0, 0, 4), 1000));
        meter.observe(&batch(4096, 0, 0), 4096 * 10);
        (0..40).for_each(|_| meter.observe(&batch(64, 0, 4), 1000 + 64 * 30));
        assert!(meter.costs().token_ns >= 28, "{:?}", meter.costs());
    }

    /// Synthetic device: nanoseconds of a step with `tokens` prefill tokens from position `at` and
    /// 8 decodes.
    const fn synthetic_ns(tokens: u64, at: u64) -> u64 {
        60_000 + tokens * (700 + 300 * (at + tokens / 2) / 1000)
    }

    /// A meter that has seen decodes, then one long prompt alone in two steps.
    fn after_a_long_prompt() -> CostMeter {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.observe(&batch(0, 0, 8), 60_000));
        meter.observe(&batch(2048, 0, 0), synthetic_ns(2048, 0));
        meter.observe(&batch(1952, 2048, 0), synthetic_ns(1952, 2048));
        meter
    }

    #[test]
    fn cost_growth_with_depth_is_predicted() {
        let meter = after_a_long_prompt();
        for at in [0, 1000, 4000] {
            let known = meter.costs().tokens_take(100, at as u32) + 60_000;
            assert!(known.abs_diff(synthetic_ns(100, at)) < known / 20, "{known} at {at}");
        }
    }

    #[test]
    fn short_prompts_do_not_skew_token_costs() {
        let mut meter = after_a_long_prompt();
        // Tokens that fit a kernel's tile for free: alone they take less than 8 decodes, beside
        // them almost nothing.
        (0..4).for_each(|_| meter.observe(&batch(16, 0, 0), 45_000));
        (0..4).for_each(|_| meter.observe(&batch(16, 0, 4), 62_000));
        let known = meter.costs().tokens_take(200, 0) + 60_000;
        assert!(known * 10 > synthetic_ns(200, 0) * 7, "{known} of {}", synthetic_ns(200, 0));
    }

    #[test]
    fn batched_short_prompts_do_not_skew_token_costs() {
        let mut meter = after_a_long_prompt();
        let together = |decodes| {
            let mut batch = batch(16, 0, decodes);
            (0..6).for_each(|_| batch.rows.push(batch.rows[0]));
            batch
        };
        // 112 tokens beside one or two decodes cost little more than the weight reads of the
        // decodes.
        (0..4).for_each(|i| meter.observe(&together(1 + i % 2), 85_000));
        let known = meter.costs().tokens_take(200, 0) + 60_000;
        assert!(known * 10 > synthetic_ns(200, 0) * 8, "{known} of {}", synthetic_ns(200, 0));
    }

    #[test]
    fn costs_adapt_to_a_slower_device_within_a_few_chunks() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.observe(&batch(0, 0, 8), 60_000));
        (0..40).for_each(|i| meter.observe(&batch(100, i * 100, 8), synthetic_ns(100, u64::from(i) * 100)));
        (0..8).for_each(|i| {
            meter.observe(&batch(100, i * 100, 8), 2 * synthetic_ns(100, u64::from(i) * 100) - 60_000)
        });
        let (known, now) = (meter.costs().tokens_take(100, 800), 2 * (synthetic_ns(100, 800) - 60_000));
        assert!(known * 10 > now * 8, "{known} of {now}");
    }

    #[test]
    fn one_stall_does_not_skew_step_costs() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.observe(&batch(0, 0, 4), 700));
        meter.observe(&batch(0, 0, 4), 1_000_000);
        assert!(meter.costs().step_ns < 800, "{:?}", meter.costs());
        (0..200).for_each(|_| meter.observe(&batch(0, 0, 4), 7000));
        assert!(meter.costs().step_ns > 6000, "but what lasts is: {:?}", meter.costs());
    }

    #[test]
    fn last_step_of_prompts_alone_is_timed() {
        let mut meter = CostMeter::default();
        for (batch, took) in
            [(batch(40, 0, 0), 500), (batch(8, 0, 0), 300), (batch(9, 0, 2), 90), (batch(0, 0, 2), 7)]
        {
            meter.observe(&batch, took);
        }
        assert_eq!(meter.costs().prefill_ns, 300);
    }

    #[test]
    fn one_batch_size_alone_gives_no_slope() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.observe(&batch(0, 0, 4), 700));
        assert_eq!(meter.costs(), Costs { step_ns: 700, ..Costs::default() });
    }
}
