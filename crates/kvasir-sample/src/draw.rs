//! Token sampling from one row of logits: logits processors, then greedy argmax or the Gumbel-max
//! trick.
//!
//! `id = argmax_i(logits[i] + gumbel(seed, position, i))` is distributed as `softmax(logits)`. It
//! needs no prefix sum over the vocabulary, and each id's noise is independent of which other ids
//! remain.
//!
//! Two shortcuts leave the result unchanged:
//!
//! - Greedy rows without processors skip the copy of the logits.
//! - An id's exact Gumbel noise (two logarithms) is computed only if the cheap upper bound
//!   `Noise::at_most` could beat the best so far.
//!
//! The tests of this module check ties, NaN, masks, penalties and the sampled distribution.

use crate::context::Context;
use crate::noise::Noise;
use crate::params::Sampling;
use crate::processors;

/// Samples one token as [`draw`] does, but leaves `logits` unchanged.
///
/// `work` is scratch memory for a copy, which is made only if a processor or noise applies.
pub fn draw_from(logits: &[f32], params: &Sampling, context: &Context<'_>, work: &mut Vec<f32>) -> u32 {
    let penalties =
        params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
    let plain = context.bias.is_empty() && context.suppressed.is_empty() && context.allowed.is_none();
    let plain = plain && context.chain.is_none() && !params.processed_logprobs;
    if params.is_greedy() && !penalties && plain {
        return greedy(logits);
    }
    work.clear();
    work.extend_from_slice(logits);
    draw(work, params, context)
}

/// Samples one token; `logits` are modified in place. Greedy takes the largest processed logit, and
/// the lowest id of equals.
///
/// The result is always an allowed id. If all allowed ids are suppressed or NaN, it is the lowest
/// allowed one.
pub fn draw(logits: &mut [f32], params: &Sampling, context: &Context<'_>) -> u32 {
    let mut drawn = draw_processed(logits, params, context);
    let is_left = logits.get(drawn as usize).is_some_and(|logit| *logit > f32::NEG_INFINITY);
    if let Some(allowed) = context.allowed.filter(|_| !is_left) {
        drawn = processors::lowest(allowed).unwrap_or(drawn);
    }
    if params.processed_logprobs && params.is_greedy() && context.chain.is_none() {
        processors::keep_only(logits, drawn);
    }
    drawn
}

/// Processes the logits in place, then samples.
fn draw_processed(logits: &mut [f32], params: &Sampling, context: &Context<'_>) -> u32 {
    process(logits, params, context);
    if params.is_greedy() && context.chain.is_none() {
        return greedy(logits);
    }
    let wide = logits.iter().map(|logit| f64::from(*logit));
    let drawn = noisiest(wide, Noise::at(params.seed, context.position)).unwrap_or(0);
    if let Some(chain) = context.chain {
        chain.observe(logits, drawn, context);
    }
    drawn
}

/// Runs the logits processors in place. Their softmax is then the distribution that is sampled.
pub(crate) fn process(logits: &mut [f32], params: &Sampling, context: &Context<'_>) {
    if let Some(allowed) = context.allowed {
        processors::allow(logits, allowed);
    }
    processors::bias(logits, context.bias);
    if let Some(chain) = context.chain {
        processors::suppress(logits, context.suppressed);
        return chain.process(logits, params, context);
    }
    context.penalize(logits, params);
    processors::suppress(logits, context.suppressed);
    if params.is_greedy() {
        return;
    }
    processors::temperature(logits, params.temperature);
    processors::top_k(logits, params.top_k as usize);
    processors::top_p(logits, params.top_p, 1);
    processors::min_p(logits, params.min_p, 1);
}

/// Whether no logit is NaN or +infinity. Such logits come from broken weights or from numeric
/// overflow.
pub fn can_be_drawn_from(logits: &[f32]) -> bool {
    // Branch-free, so that the compiler vectorizes it (SIMD).
    logits.iter().fold(true, |all, logit| all & (*logit < f32::INFINITY))
}

/// Argmax, the lowest id of equals; 0 if no logit is above negative infinity.
fn greedy(logits: &[f32]) -> u32 {
    // Two passes per chunk: find the maximum, then its index. A chunk of 16 KiB is still in the L1
    // cache for the second.
    const PART: usize = 4096;
    let mut best = (f32::NEG_INFINITY, 0);
    for (n, part) in logits.chunks(PART).enumerate() {
        let most = largest(part);
        if most > best.0 {
            best = (most, n * PART);
        }
    }
    let (most, first) = best;
    let found = logits[first..].iter().position(|v| *v == most).filter(|_| most > f32::NEG_INFINITY);
    (first + found.unwrap_or_default()) as u32
}

/// The maximum, ignoring NaN; negative infinity if there is none. Sixteen accumulators, for SIMD.
fn largest(all: &[f32]) -> f32 {
    const LANES: usize = 16;
    let more = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = all.as_chunks::<LANES>();
    for part in whole {
        lanes.iter_mut().zip(part).for_each(|(lane, v)| *lane = more(*lane, *v));
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| more(a, *b))
}

/// Gumbel-max: `argmax(logit + gumbel)` over the ids with a logit above negative infinity, if there is any.
pub(crate) fn noisiest(logits: impl Iterator<Item = f64>, noise: Noise) -> Option<u32> {
    let mut best = (None, f64::NEG_INFINITY);
    for (value, id) in logits.zip(0..) {
        // Skip ids whose upper bound cannot win: the exact noise costs two logarithms.
        if value > f64::NEG_INFINITY && value + noise.at_most(id) > best.1 {
            let value = value + noise.gumbel(id);
            best = if value > best.1 { (Some(id), value) } else { best };
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 3.0, 3.0, -2.0, 0.5, f32::NAN];

    fn shares(params: Sampling) -> Vec<f64> {
        let mut counts = vec![0.0; LOGITS.len()];
        let draws = 40_000;
        for position in 0..draws {
            let context = Context { position, ..Context::default() };
            counts[draw(&mut LOGITS.clone(), &params, &context) as usize] += 1.0 / f64::from(draws);
        }
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_tied_id_and_no_nan() {
        assert_eq!(draw(&mut LOGITS.clone(), &Sampling::default(), &Context::default()), 1);
        let context = Context { suppressed: &[1], ..Context::default() };
        assert_eq!(draw(&mut LOGITS.clone(), &Sampling::default(), &context), 2);
        let mut long = vec![f32::NEG_INFINITY; 10_000];
        assert_eq!(greedy(&long), 0);
        for largest in [9_999, 5_000, 4_096, 4_095, 17] {
            long[largest] = 2.0;
            assert_eq!(greedy(&long), largest as u32);
        }
    }

    #[test]
    fn only_numbers_can_be_drawn_from() {
        assert!(!can_be_drawn_from(&LOGITS) && !can_be_drawn_from(&[0.0, f32::INFINITY]));
        assert!(can_be_drawn_from(&LOGITS[..5]) && can_be_drawn_from(&[f32::NEG_INFINITY, 0.0]));
    }

    #[test]
    fn a_copy_is_drawn_from_as_the_row_itself_is() {
        let logits: Vec<f32> =
            (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 500.0).collect();
        let all = |logits: &[f32], noise: Noise| {
            let noisy = logits.iter().zip(0..).map(|(l, id)| f64::from(*l) + noise.gumbel(id));
            (0..).zip(noisy).fold((0, f64::NEG_INFINITY), |b, (i, v)| if v > b.1 { (i, v) } else { b }).0
        };
        for position in 0..300 {
            let context = Context { position, ..Context::default() };
            for params in [
                Sampling::default(),
                Sampling { temperature: 0.8, seed: 3, ..Sampling::default() },
                Sampling { temperature: 1.2, top_k: 40, ..Sampling::default() },
                Sampling { presence_penalty: 1.0, ..Sampling::default() },
            ] {
                let mut work = Vec::new();
                let drawn = draw_from(&logits, &params, &context, &mut work);
                assert_eq!(drawn, draw(&mut logits.clone(), &params, &context));
                if params.seed == 3 {
                    // Reference without the bound: computes the noise of every id.
                    assert_eq!(drawn, all(&work, Noise::at(3, position)));
                }
            }
        }
        assert_eq!(
            draw_from(&[f32::NEG_INFINITY; 40], &Sampling::default(), &Context::default(), &mut vec![]),
            0
        );
    }

    #[test]
    fn sampling_draws_only_allowed_tokens() {
        let with = |allowed: &'static [u32]| Context { allowed: Some(allowed), ..Context::default() };
        let of_seventy = |bits| draw_from(&[1.0; 70], &Sampling::default(), &with(bits), &mut Vec::new());
        for params in
            [Sampling::default(), Sampling { temperature: 2.0, top_k: 3, top_p: 0.9, ..Sampling::default() }]
        {
            let drawn = |bits| draw(&mut LOGITS.clone(), &params, &with(bits));
            assert_eq!(drawn(&[1 << 3]), 3);
            assert!([0, 4].contains(&drawn(&[1 << 4 | 1])));
            assert_eq!(drawn(&[1 << 5]), 5, "allowed and no number");
            let context = Context { suppressed: &[3, 4], ..with(&[1 << 4 | 1 << 3]) };
            assert_eq!(draw(&mut LOGITS.clone(), &params, &context), 3, "all that is allowed is suppressed");
        }
        assert_eq!([of_seventy(&[0, 1 << 31, 1 << 5]), of_seventy(&[0, 0, 1])], [63, 64]);
        assert_eq!(of_seventy(&[0, 4]), 34, "ids beyond the last word may not");
    }

    #[test]
    fn draws_follow_the_processed_distribution() {
        let params = Sampling { temperature: 1.5, seed: 11, ..Sampling::default() };
        let mut logits = LOGITS.to_vec();
        processors::temperature(&mut logits, 1.5);
        for (share, p) in shares(params).iter().zip(processors::probabilities(&logits)) {
            assert!((share - f64::from(p)).abs() < 0.01, "{share} {p}");
        }
        let few = shares(Sampling { temperature: 1.0, top_k: 2, ..Sampling::default() });
        assert!(few[0] == 0.0 && few[3..].iter().all(|share| *share == 0.0), "{few:?}");
    }

    #[test]
    fn penalties_look_where_they_should() {
        let params = Sampling { presence_penalty: 1.0, frequency_penalty: 0.5, ..Sampling::default() };
        let context = Context { prompt: &[1, 1, 1], output: &[2, 2], ..Context::default() };
        let mut logits = LOGITS.to_vec();
        assert_eq!(draw(&mut logits, &params, &context), 1);
        assert_eq!(logits[..3], [1.0, 3.0, 1.0]);
        let params = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let context = Context { prompt: &[1, 1, 3], output: &[1], ..Context::default() };
        let mut logits = LOGITS.to_vec();
        assert_eq!(draw(&mut logits, &params, &context), 2);
        assert_eq!(logits[..4], [1.0, 1.5, 3.0, -4.0]);
    }
}
