//! The inputs of a draw beside the logits and the sampling parameters.

use crate::chain::SamplerChain;
use crate::mirostat::MirostatState;
use crate::params::Sampling;
use crate::processors;

/// Per-token inputs of [`draw`](fn@crate::draw).
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// Ids of the prompt.
    pub prompt: &'a [u32],
    /// Output ids before the sampled one, for penalties.
    pub output: &'a [u32],
    /// Logit bias: `(id, value)`, added to the logits.
    pub bias: &'a [(u32, f32)],
    /// Ids that are masked out.
    pub suppressed: &'a [u32],
    /// Token mask of constrained decoding, as in [`Allowed::Only`](crate::constraint::Allowed::Only); `None`
    /// allows all ids.
    pub allowed: Option<&'a [u32]>,
    /// llama.cpp's samplers and their order, which replace the default processors.
    pub chain: Option<&'a SamplerChain>,
    /// Mirostat's state. If it is `None`, each draw uses the initial `mu`.
    pub mirostat: Option<&'a MirostatState>,
    /// Position of the sampled token in its sequence; keys the noise.
    pub position: u32,
}

impl Context<'_> {
    /// Applies the repetition penalty to the ids of prompt and output, the presence and frequency
    /// penalties to those of the output.
    pub(crate) fn penalize(&self, logits: &mut [f32], params: &Sampling) {
        if params.repetition_penalty != 1.0 {
            let seen = self.prompt.iter().chain(self.output).copied();
            processors::repetition_penalty(logits, seen, params.repetition_penalty);
        }
        if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
            let output = self.output.iter().copied();
            processors::output_penalties(logits, output, params.presence_penalty, params.frequency_penalty);
        }
    }
}
