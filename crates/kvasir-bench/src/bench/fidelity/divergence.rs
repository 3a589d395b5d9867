//! Errors of next-token distributions, position by position: `q` against the exact `p`.
//!
//! | figure | definition |
//! |---|---|
//! | perplexity | `exp(mean(-log p(next token)))` |
//! | KL divergence | `Σ p (log p − log q)` over the vocabulary |
//! | top-5 error | mean of `\|log q − log p\|` over the five likeliest tokens of `p` |
//! | agreement | both distributions have the same likeliest token |
//!
//! Sums are in f64.

use kvasir_kv::Token;
use serde::Serialize;

/// Tokens whose log-probabilities are compared.
const LIKELIEST: usize = 5;

/// Errors over a text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Positions that were compared.
    pub positions: u64,
    /// Perplexity of the text under exact arithmetic.
    pub perplexity_exact: f64,
    /// Perplexity under the default arithmetic.
    pub perplexity: f64,
    /// Mean KL divergence from the exact distribution, in nats.
    pub mean_kl: f64,
    /// Mean error of the log-probabilities of the five likeliest tokens.
    pub mean_error: f64,
    /// The largest such error of any position.
    pub max_error: f64,
    /// Positions whose likeliest token is the same.
    pub agreeing: u64,
}

/// Sums of the errors so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogitErrors {
    positions: u64,
    /// Positions with a target, and their negative log-likelihoods.
    targets: u64,
    loss_exact: f64,
    loss: f64,
    kl: f64,
    error: f64,
    max_error: f64,
    agreeing: u64,
}

/// `log Σ exp(x)`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - f64::from(max)).exp()).sum();
    f64::from(max) + sum.ln()
}

impl LogitErrors {
    /// Compares one position; `target` is the token that follows it in the text.
    pub(crate) fn add(&mut self, exact: &[f32], default: &[f32], target: Option<Token>) {
        let (total_exact, total) = (log_sum_exp(exact), log_sum_exp(default));
        let log_p = |id: usize| f64::from(exact[id]) - total_exact;
        let log_q = |id: usize| f64::from(default[id]) - total;
        self.positions += 1;
        self.kl += (0..exact.len()).map(|id| log_p(id).exp() * (log_p(id) - log_q(id))).sum::<f64>();
        let likeliest = kvasir_sample::top_log_probabilities(exact, LIKELIEST);
        let error = |id: u32| (log_q(id as usize) - log_p(id as usize)).abs();
        let errors = || likeliest.iter().map(|(id, _)| error(*id));
        self.error += errors().sum::<f64>() / likeliest.len().max(1) as f64;
        self.max_error = errors().fold(self.max_error, f64::max);
        let first = |row: &[f32]| kvasir_sample::top_log_probabilities(row, 1).first().map(|(id, _)| *id);
        self.agreeing += u64::from(likeliest.first().map(|(id, _)| *id) == first(default));
        if let Some(target) = target {
            self.targets += 1;
            self.loss_exact -= log_p(target as usize);
            self.loss -= log_q(target as usize);
        }
    }

    /// Means over all positions.
    pub(crate) fn divergence(&self) -> Divergence {
        let positions = self.positions.max(1) as f64;
        let perplexity = |loss: f64| (loss / self.targets.max(1) as f64).exp();
        Divergence {
            positions: self.positions,
            perplexity_exact: perplexity(self.loss_exact),
            perplexity: perplexity(self.loss),
            mean_kl: self.kl / positions,
            mean_error: self.error / positions,
            max_error: self.max_error,
            agreeing: self.agreeing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_have_no_error() {
        let mut errors = LogitErrors::default();
        // A constant offset of all logits changes no probability.
        errors.add(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0], Some(2));
        let Divergence { mean_kl, mean_error, max_error, agreeing, perplexity, perplexity_exact, .. } =
            errors.divergence();
        assert!(mean_kl.abs() < 1e-12 && mean_error.abs() < 1e-12 && max_error.abs() < 1e-12);
        assert!(agreeing == 1 && (perplexity - perplexity_exact).abs() < 1e-12);
        let expected = 1.0 + (-1.0_f64).exp() + (-2.0_f64).exp();
        assert!((perplexity - expected).abs() < 1e-12, "{perplexity}");
    }

    #[test]
    fn figures_match_two_known_distributions() {
        let mut errors = LogitErrors::default();
        let logits = |p: [f64; 2]| p.map(|p| p.ln() as f32);
        errors.add(&logits([0.75, 0.25]), &logits([0.25, 0.75]), Some(0));
        errors.add(&logits([0.5, 0.5]), &logits([0.5, 0.5]), None);
        let divergence = errors.divergence();
        let ln3 = 3.0_f64.ln();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}");
        close(divergence.mean_kl, 0.5 * ln3 / 2.0);
        close(divergence.mean_error, ln3 / 2.0);
        close(divergence.max_error, ln3);
        close(divergence.perplexity_exact, 4.0 / 3.0);
        close(divergence.perplexity, 4.0);
        assert_eq!((divergence.positions, divergence.agreeing), (2, 1));
    }
}
