use crate::{Costs, Nanos};
use kvasir_exec::{Batch, Phase};

/// Learns from finished steps what a step, a decode row and a prompt token cost. Old steps fade.
#[derive(Clone, Debug, Default)]
pub(crate) struct CostMeter {
    /// Faded sums over steps without prompts: weight, rows, time, rows², rows · time.
    sums: [f64; 5],
    /// Faded sums over steps with prompts: time beyond what their decodes take, prompt tokens.
    prompt_ns: f64,
    prompt_tokens: f64,
}

/// How much of the past is left after each step.
const FADE: f64 = 0.98;
/// How much of earlier prompts is left after each chunk: within one prompt, tokens cost more and more.
const PROMPT_FADE: f64 = 0.7;
/// A chunk counts for so many tokens at most.
const HEAVIEST: usize = 64;

impl CostMeter {
    /// Takes in a step that took `took`.
    pub(crate) fn see(&mut self, batch: &Batch, took: Nanos) {
        let (_, tokens) = batch.count(Phase::Prefill);
        let (rows, _) = batch.count(Phase::Decode);
        if tokens == 0 {
            // A decode row more is what the slope is about, so the first row belongs to the step.
            let (x, y) = (rows.saturating_sub(1) as f64, took as f64);
            let seen = [1.0, x, y, x * x, x * y];
            self.sums.iter_mut().zip(seen).for_each(|(sum, one)| *sum = *sum * FADE + one);
            return;
        }
        let costs = self.costs();
        let decodes = match rows {
            0 => 0,
            rows => costs.step_ns + costs.row_ns * (rows as u64 - 1),
        };
        // A long chunk says no more about the next step than a short one does, and less about short ones.
        let weight = tokens.min(HEAVIEST) as f64 / tokens as f64;
        self.prompt_ns = self.prompt_ns * PROMPT_FADE + took.saturating_sub(decodes) as f64 * weight;
        self.prompt_tokens = self.prompt_tokens * PROMPT_FADE + tokens as f64 * weight;
    }

    /// What is known so far; zeros where nothing is.
    pub(crate) fn costs(&self) -> Costs {
        let [n, x, y, xx, xy] = self.sums;
        let spread = n * xx - x * x;
        let slope = match spread > 1e-9 * (n * xx).max(1.0) {
            true => ((n * xy - x * y) / spread).max(0.0),
            false => 0.0,
        };
        let base = if n > 0.0 { ((y - slope * x) / n).max(0.0) } else { 0.0 };
        let token = if self.prompt_tokens > 0.0 { self.prompt_ns / self.prompt_tokens } else { 0.0 };
        Costs { step_ns: base as u64, row_ns: slope as u64, token_ns: token as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_exec::BatchRow;
    use kvasir_kv::Span;

    fn batch(prompt: usize, decodes: usize) -> Batch {
        let row = |phase, len| BatchRow { phase, tokens: Span { start: 0, len }, ..BatchRow::default() };
        let mut batch = Batch::default();
        if prompt > 0 {
            batch.rows.push(row(Phase::Prefill, prompt as u32));
        }
        batch.rows.extend((0..decodes).map(|_| row(Phase::Decode, 1)));
        batch
    }

    #[test]
    fn a_linear_device_is_learnt() {
        let mut meter = CostMeter::default();
        for i in 0..200 {
            let rows = 1 + i % 7;
            meter.see(&batch(0, rows), 1000 + 50 * (rows as u64 - 1));
        }
        for i in 1..50 {
            meter.see(&batch(i * 3, 2), 1050 + 20 * (i as u64 * 3));
        }
        let costs = meter.costs();
        assert!((990..=1010).contains(&costs.step_ns), "{costs:?}");
        assert!((48..=52).contains(&costs.row_ns), "{costs:?}");
        assert!((19..=21).contains(&costs.token_ns), "{costs:?}");
    }

    #[test]
    fn one_long_prompt_does_not_outweigh_the_chunks_after_it() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.see(&batch(0, 4), 1000));
        meter.see(&batch(4096, 0), 4096 * 10);
        (0..40).for_each(|_| meter.see(&batch(64, 4), 1000 + 64 * 30));
        assert!(meter.costs().token_ns >= 29, "{:?}", meter.costs());
    }

    #[test]
    fn a_prompt_whose_tokens_grow_dearer_is_kept_up_with() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.see(&batch(0, 8), 60_000));
        let token = |chunk: u64| 10_000 + 400 * chunk;
        (0..24).for_each(|chunk| meter.see(&batch(176, 8), 60_000 + 176 * token(chunk)));
        let (known, last) = (meter.costs().token_ns, token(23));
        assert!(known * 100 > last * 94, "{known} of {last}: chunks would be so much too long");
    }

    #[test]
    fn one_batch_size_alone_gives_no_slope() {
        let mut meter = CostMeter::default();
        (0..20).for_each(|_| meter.see(&batch(0, 4), 700));
        assert_eq!(meter.costs(), Costs { step_ns: 700, row_ns: 0, token_ns: 0 });
    }
}
