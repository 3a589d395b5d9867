//! Sampling parameters of a request: temperature, top-k, top-p, min-p, penalties, seed and
//! logprobs.

use serde::{Deserialize, Serialize};

/// Sampling parameters of one sequence.
///
/// Fixed-size, so that they travel in every batch row. What varies in size (logit bias, grammar
/// masks, token history) is bound to the sequence's token-pool row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy, and so is every value below [`Sampling::COLDEST`].
    pub temperature: f32,
    /// Keep the k most likely ids; 0 keeps all.
    pub top_k: u32,
    /// Nucleus sampling: keep the smallest set of ids whose probabilities sum to at least this; 1
    /// keeps all.
    pub top_p: f32,
    /// Keep ids at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of ids in the prompt or output; 1 disables
    /// it.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of each id in the output; 0 disables it.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output; 0 disables it.
    pub frequency_penalty: f32,
    /// Keys the noise, together with the position and the id.
    pub seed: u64,
    /// Number of top log-probabilities to report per sampled token; `None` reports none, not even
    /// the sampled one's.
    pub logprobs: Option<u32>,
    /// Report log-probabilities after all logits processors, instead of those of the model's
    /// logits.
    pub processed_logprobs: bool,
    /// Number of top log-probabilities to report per prompt token after the first; `None` reports
    /// none.
    pub prompt_logprobs: Option<u32>,
    /// Report the hidden state behind the first sampled token: the last prompt row after the final
    /// norm (embeddings).
    pub hidden: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logprobs: None,
            processed_logprobs: false,
            prompt_logprobs: None,
            hidden: false,
        }
    }
}

impl Sampling {
    /// Below this temperature sampling is greedy: dividing logits by less could overflow f32.
    pub const COLDEST: f32 = 1e-5;

    /// Whether the most likely token is always the one sampled.
    pub fn is_greedy(&self) -> bool {
        self.temperature < Self::COLDEST || self.top_k == 1
    }
}
