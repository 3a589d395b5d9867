//! Rejection sampling of drafts: a token that a draft model drew from its distribution `q` is accepted
//! with probability `min(1, p / q)`, where `p` is the target's distribution; in the place of a
//! rejected one, a token is drawn from the residual `max(0, p - q)`.
//!
//! The result is distributed as `p`, but is not the token that the target alone would draw. All
//! random numbers come from (seed, position, purpose), so equal drafts give equal results.
//!
//! Preconditions: `q` is exactly what the draft was drawn from, with noise of
//! [`Purpose::Draft`], and nothing that depends on the draft's value decides whether it is verified.

use crate::context::Context;
use crate::draw::{draw_from, noisiest, process};
use crate::noise::{Noise, Purpose};
use crate::params::Sampling;

/// How a verified draft is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acceptance {
    /// If it is the token that the target draws with the same noise: the output is that of decoding
    /// without drafts.
    #[default]
    Coupled,
    /// With probability `min(1, p / q)`: the output has the same distribution.
    Rejection,
}

/// Draws a token from `softmax(logits / temperature)` of a draft model, and writes that distribution
/// into `probabilities`. Ids are those of the draft model.
pub fn draw_draft(logits: &[f32], sampling: &Sampling, position: u32, probabilities: &mut Vec<f32>) -> u32 {
    let noise = Noise::at(sampling.seed, position).purpose(Purpose::Draft);
    probabilities.clear();
    probabilities.extend(logits.iter().map(|logit| logit / sampling.temperature));
    softmax(probabilities);
    proportional(probabilities, noise).unwrap_or(0)
}

/// The target's token where a draft was drawn with `probabilities`, by id of the target; ids beyond
/// have probability 0. It is the draft itself if it is accepted, and another one if not.
pub fn accept_or_redraw(
    logits: &[f32],
    sampling: &Sampling,
    context: &Context<'_>,
    (draft, probabilities): (u32, &[f32]),
    work: &mut Vec<f32>,
) -> u32 {
    // A chain has random draws (XTC) and state (Mirostat) of its own: sample from the target only.
    if sampling.is_greedy() || context.chain.is_some() {
        return draw_from(logits, sampling, context, work);
    }
    work.clear();
    work.extend_from_slice(logits);
    process(work, sampling, context);
    softmax(work);
    let at = |list: &[f32], id: u32| list.get(id as usize).copied().unwrap_or(0.0);
    let noise = Noise::at(sampling.seed, context.position);
    let ratio = f64::from(at(work, draft)) / f64::from(at(probabilities, draft));
    if noise.purpose(Purpose::Acceptance).uniform(draft) < ratio {
        return draft;
    }
    work.iter_mut().zip(probabilities).for_each(|(target, drafted)| *target -= drafted);
    // Rounding may leave no residual where both distributions agree; the target's own draw is right then.
    let residual = proportional(work, noise.purpose(Purpose::Residual));
    residual.unwrap_or_else(|| draw_from(logits, sampling, context, work))
}

/// Softmax in place. Without a finite logit, all become 0.
fn softmax(logits: &mut [f32]) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for logit in logits.iter_mut() {
        *logit = if *logit > f32::NEG_INFINITY { (*logit - most).exp() } else { 0.0 };
        sum += f64::from(*logit);
    }
    let scale = if sum > 0.0 { (1.0 / sum) as f32 } else { 0.0 };
    logits.iter_mut().for_each(|weight| *weight *= scale);
}

/// Draws an id in proportion to the positive weights; `None` without any.
fn proportional(weights: &[f32], noise: Noise) -> Option<u32> {
    let log = |weight: &f32| if *weight > 0.0 { f64::from(*weight).ln() } else { f64::NEG_INFINITY };
    noisiest(weights.iter().map(log), noise)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 100_000;

    /// Frequencies of `DRAWS` verified drafts, and how many were accepted.
    fn frequencies(
        target: &[f32],
        draft: &[f32],
        sampling: Sampling,
        context: Context<'_>,
    ) -> (Vec<f64>, f64) {
        let (mut counts, mut accepted) = (vec![0.0; target.len()], 0.0);
        let (mut probabilities, mut work) = (Vec::new(), Vec::new());
        for position in 0..DRAWS {
            let context = Context { position, ..context };
            let drawn = draw_draft(draft, &sampling, position, &mut probabilities);
            let token = accept_or_redraw(target, &sampling, &context, (drawn, &probabilities), &mut work);
            counts[token as usize] += 1.0;
            accepted += f64::from(u8::from(token == drawn)) / f64::from(DRAWS);
        }
        (counts, accepted)
    }

    /// The distribution that is sampled, by definition.
    fn expected(target: &[f32], sampling: Sampling, context: Context<'_>) -> Vec<f32> {
        let mut logits = target.to_vec();
        process(&mut logits, &sampling, &context);
        softmax(&mut logits);
        logits
    }

    #[test]
    fn outputs_are_distributed_as_the_target() {
        let target = [1.0, 0.2, -0.5, 2.0, 0.0, -3.0, 0.7, 1.1];
        let near = [0.8, 0.5, -0.5, 1.5, 0.3, -1.0, 0.0, 1.0];
        let far = [-2.0, 3.0, 2.0, -1.0, 0.0, 1.0, -2.0, 0.0];
        let few = [0.5, 1.5, 0.0];
        let warm = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let cool = Sampling { temperature: 0.6, seed: 8, ..Sampling::default() };
        let cut = Sampling { top_k: 4, top_p: 0.9, seed: 9, ..warm };
        let penalized = Sampling { repetition_penalty: 1.3, presence_penalty: 0.5, seed: 10, ..warm };
        let masked = Context { allowed: Some(&[0b0101_0110]), ..Context::default() };
        let biased = Context { bias: &[(1, 1.5), (3, -2.0)], output: &[0, 3, 3], ..Context::default() };
        for (n, (draft, sampling, context)) in [
            (&near[..], warm, Context::default()),
            (&far, warm, Context::default()),
            (&target, cool, Context::default()),
            (&few, cool, Context::default()),
            (&near, cut, Context::default()),
            (&far, penalized, biased),
            (&near, warm, masked),
        ]
        .into_iter()
        .enumerate()
        {
            let expected = expected(&target, sampling, context);
            let (counts, accepted) = frequencies(&target, draft, sampling, context);
            let (mut chi_squared, mut cells) = (0.0, -1.0);
            for (count, probability) in counts.iter().zip(&expected) {
                let wanted = f64::from(*probability) * f64::from(DRAWS);
                if wanted == 0.0 {
                    assert_eq!(*count, 0.0, "case {n}: an impossible token");
                } else {
                    chi_squared += (count - wanted).powi(2) / wanted;
                    cells += 1.0;
                }
            }
            // 1 in 10,000 by chance, by the normal approximation of Wilson and Hilferty.
            let (a, z): (f64, f64) = (2.0 / (9.0 * cells), 3.72);
            let limit = cells * (1.0 - a + z * a.sqrt()).powi(3);
            assert!(chi_squared < limit, "case {n}: {chi_squared} of {limit}");
            // Accepted as often as any scheme can: the overlap of both distributions.
            let mut drafted: Vec<f32> = draft.iter().map(|logit| logit / sampling.temperature).collect();
            softmax(&mut drafted);
            let overlap: f64 = drafted.iter().zip(&expected).map(|(q, p)| f64::from(q.min(*p))).sum();
            assert!((accepted - overlap).abs() < 0.01, "case {n}: {accepted} of {overlap}");
        }
    }

    #[test]
    fn a_rejected_draft_is_never_drawn_again() {
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        let (mut probabilities, mut work) = (Vec::new(), Vec::new());
        for position in 0..1000 {
            let context = Context { position, ..Context::default() };
            let draft = draw_draft(&[5.0, 0.0, 0.0], &sampling, position, &mut probabilities);
            let target = [0.0, f32::NEG_INFINITY, 1.0];
            let token = accept_or_redraw(&target, &sampling, &context, (draft, &probabilities), &mut work);
            assert!(token != 1);
        }
    }

    #[test]
    fn greedy_decoding_ignores_probabilities() {
        let greedy = Sampling::default();
        let token =
            accept_or_redraw(&[0.0, 2.0, 1.0], &greedy, &Context::default(), (0, &[1.0]), &mut vec![]);
        assert_eq!(token, 1);
    }
}
