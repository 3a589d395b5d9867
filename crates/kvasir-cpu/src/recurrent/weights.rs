//! The weights of recurrent ops, in the layout of their kernels.

use crate::rowwise::exp;
use kvasir_program::DecayRate;

/// The weights of the op that a state belongs to.
pub(crate) enum RecurrentWeights {
    Conv(ConvWeights),
    Head(HeadWeights),
    /// Of n-gram embeddings: nothing, because their table rows are read from the weight source.
    NgramTables,
}

/// Weights of a short convolution.
pub(crate) struct ConvWeights {
    /// Weights `[kernel, channels]`, those of the oldest token first.
    pub(crate) taps: Vec<f32>,
    /// One element per channel; 0 without a bias.
    pub(crate) bias: Vec<f32>,
}

impl ConvWeights {
    /// From `kernel` stored weights per channel.
    pub(crate) fn new(stored: &[f32], kernel: usize, bias: Option<Vec<f32>>) -> Self {
        let channels = stored.len() / kernel.max(1);
        let taps = (0..kernel).flat_map(|j| (0..channels).map(move |channel| stored[channel * kernel + j]));
        Self { taps: taps.collect(), bias: bias.unwrap_or_else(|| vec![0.0; channels]) }
    }
}

/// Per-head weights of a gated delta rule or a selective scan.
pub(crate) struct HeadWeights {
    /// Decay rate of each head; negative.
    pub(crate) rates: Vec<f32>,
    /// Bias before the softplus or sigmoid: one per decay of a gated delta rule, one per head of a
    /// selective scan.
    pub(crate) dt_bias: Vec<f32>,
    /// Skip weight D of each head of a selective scan; empty for a gated delta rule.
    pub(crate) skip: Vec<f32>,
}

impl HeadWeights {
    /// `stored` is how the checkpoint stores `decay`.
    pub(crate) fn new(decay: &[f32], stored: DecayRate, dt_bias: Vec<f32>, skip: Vec<f32>) -> Self {
        let rate = |decay: &f32| match stored {
            DecayRate::Logarithm => -exp(*decay),
            DecayRate::Rate => *decay,
        };
        Self { rates: decay.iter().map(rate).collect(), dt_bias, skip }
    }
}
