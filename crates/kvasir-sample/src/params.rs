use serde::{Deserialize, Serialize};

/// How one sequence's tokens are drawn. Plain numbers; what varies in size (bias, grammar masks, penalty counts) is
/// bound to the sequence's token-pool row instead.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy, and so is all below [`Sampling::COLDEST`].
    pub temperature: f32,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep what is at least this share of the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of ids that occurred in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from ids that occurred in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the output; 0 is off.
    pub frequency_penalty: f32,
    /// Key of the noise, together with the position.
    pub seed: u64,
    /// Log-probabilities to report per token beside the chosen one; `None` reports none at all.
    pub logprobs: Option<u32>,
    /// The same for the tokens of the prompt after its first.
    pub prompt_logprobs: Option<u32>,
    /// Report the hidden state that the first token is drawn from: the prompt's last row, after the final norm.
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
            prompt_logprobs: None,
            hidden: false,
        }
    }
}

impl Sampling {
    /// Below this temperature the likeliest token is taken: logits divided by less could overflow.
    pub const COLDEST: f32 = 1e-5;

    /// Whether the likeliest token is always the one drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature < Self::COLDEST || self.top_k == 1
    }
}
