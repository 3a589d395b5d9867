//! Runs a sampler chain over one row of logits. Guarded by `tests/llama_cpp_samplers.rs`.

use crate::chain::{Sampler, SamplerChain};
use crate::context::Context;
use crate::mirostat::Mirostat;
use crate::noise::{Noise, Purpose};
use crate::params::Sampling;
use crate::processors;

impl SamplerChain {
    /// Runs the chain in place. The softmax of the logits is then the distribution that is sampled.
    pub fn process(&self, logits: &mut [f32], params: &Sampling, context: &Context<'_>) {
        if let Some(mirostat) = &self.mirostat {
            temperature(logits, params.temperature);
            return mirostat.truncate(logits, mu(mirostat, context));
        }
        self.order.iter().for_each(|sampler| self.apply(*sampler, logits, params, context));
    }

    /// Updates Mirostat's state with the drawn token. `logits` are those that [`Self::process`]
    /// left.
    pub(crate) fn observe(&self, logits: &[f32], drawn: u32, context: &Context<'_>) {
        if let (Some(mirostat), Some(state)) = (&self.mirostat, context.mirostat) {
            state.set(context.output.len(), mirostat.next_mu(logits, drawn, mu(mirostat, context)));
        }
    }

    fn apply(&self, sampler: Sampler, logits: &mut [f32], params: &Sampling, context: &Context<'_>) {
        let min_keep = self.min_keep as usize;
        match sampler {
            Sampler::Penalties => match self.penalty_last_n {
                None => context.penalize(logits, params),
                Some(n) => {
                    let (presence, frequency) = (params.presence_penalty, params.frequency_penalty);
                    let recent = newest_first(context, n);
                    processors::recent_penalties(
                        logits,
                        recent,
                        params.repetition_penalty,
                        presence,
                        frequency,
                    );
                }
            },
            Sampler::Dry => {
                if let Some(dry) = &self.dry {
                    let recent: Vec<u32> = newest_first(context, dry.last_n).collect();
                    dry.penalize(logits, &recent);
                }
            }
            Sampler::TopNSigma => processors::top_n_sigma(logits, self.top_n_sigma),
            Sampler::TopK => processors::top_k(logits, params.top_k as usize),
            Sampler::TypicalP => processors::typical_p(logits, self.typical_p, min_keep),
            Sampler::TopP => processors::top_p(logits, params.top_p, min_keep),
            Sampler::MinP => processors::min_p(logits, params.min_p, min_keep),
            Sampler::Xtc => {
                let noise = Noise::at(params.seed, context.position).purpose(Purpose::Exclusion);
                if self.xtc_threshold <= 0.5 && noise.uniform(0) < f64::from(self.xtc_probability) {
                    processors::exclude_top_choices(logits, self.xtc_threshold, min_keep);
                }
            }
            Sampler::Temperature if self.dynatemp_range > 0.0 => {
                let (range, exponent) = (self.dynatemp_range, self.dynatemp_exponent);
                let dynamic = processors::dynamic_temperature(logits, params.temperature, range, exponent);
                temperature(logits, dynamic);
            }
            Sampler::Temperature => temperature(logits, params.temperature),
        }
    }
}

/// Divides the logits by the temperature. Below [`Sampling::COLDEST`], keeps only the largest
/// logit, of equal ones that of the lowest id.
fn temperature(logits: &mut [f32], temperature: f32) {
    if temperature >= Sampling::COLDEST {
        return processors::temperature(logits, temperature);
    }
    let by_logit = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1));
    let candidates = logits.iter().copied().zip(0..).filter(|(logit, _)| !logit.is_nan());
    if let Some((_, id)) = candidates.max_by(by_logit) {
        processors::keep_only(logits, id);
    }
}

/// `mu` for the token to draw: the state's, or the initial one without a state.
fn mu(mirostat: &Mirostat, context: &Context<'_>) -> f32 {
    let first = mirostat.first_mu();
    context.mirostat.map_or(first, |state| state.mu(context.output.len(), first))
}

/// The last `n` tokens of prompt and output, newest first.
fn newest_first<'a>(context: &Context<'a>, n: u32) -> impl Iterator<Item = u32> + use<'a> {
    context.output.iter().rev().chain(context.prompt.iter().rev()).copied().take(n as usize)
}
