use crate::{Noise, Sampling, processors};

/// What a draw depends on beside the logits and the parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Ids of the prompt.
    pub prompt: &'a [u32],
    /// Ids that were put out before the one that is drawn.
    pub output: &'a [u32],
    /// Added to single logits.
    pub bias: &'a [(u32, f32)],
    /// Ids that may not be drawn.
    pub suppressed: &'a [u32],
    /// Position of the token that is drawn, in its sequence.
    pub position: u32,
}

/// Draws one token; `logits` are worked on in place. Greedy takes the largest processed logit, of equals the lowest id.
pub fn draw(logits: &mut [f32], params: &Sampling, context: &Context<'_>) -> u32 {
    processors::bias(logits, context.bias);
    if params.repetition_penalty != 1.0 {
        let seen = context.prompt.iter().chain(context.output).copied();
        processors::repetition_penalty(logits, seen, params.repetition_penalty);
    }
    if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
        let output = context.output.iter().copied();
        processors::output_penalties(logits, output, params.presence_penalty, params.frequency_penalty);
    }
    processors::suppress(logits, context.suppressed);
    if params.is_greedy() {
        return largest(logits.iter().map(|logit| f64::from(*logit)));
    }
    processors::temperature(logits, params.temperature);
    processors::top_k(logits, params.top_k as usize);
    processors::top_p(logits, params.top_p);
    processors::min_p(logits, params.min_p);
    let noise = Noise::at(params.seed, context.position);
    largest(logits.iter().zip(0..).map(|(logit, id)| match *logit > f32::NEG_INFINITY {
        true => f64::from(*logit) + noise.gumbel(id),
        false => f64::NEG_INFINITY,
    }))
}

fn largest(values: impl Iterator<Item = f64>) -> u32 {
    let better = |best: (u32, f64), (id, value)| if value > best.1 { (id, value) } else { best };
    (0..).zip(values).fold((0, f64::NEG_INFINITY), better).0
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
    fn greedy_takes_the_lowest_of_equals_and_no_nan() {
        assert_eq!(draw(&mut LOGITS.clone(), &Sampling::default(), &Context::default()), 1);
        let context = Context { suppressed: &[1], ..Context::default() };
        assert_eq!(draw(&mut LOGITS.clone(), &Sampling::default(), &context), 2);
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
