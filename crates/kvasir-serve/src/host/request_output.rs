//! Output of one answer, as it accumulates in the reader's buffer.

use kvasir_engine::Summary;
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;

/// Output of one answer since it was last read. Its buffers are reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOutput {
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Their log-probabilities, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log-probabilities of the prompt's tokens from the second on, with the first output if
    /// requested.
    pub scores: Vec<TokenLogprobs>,
    /// Prompt tokens served from the KV cache, once, when the request is admitted.
    pub cached: Option<u32>,
    /// Hidden state of the prompt's last token, with the first output if requested.
    pub hidden: Vec<f32>,
    /// The outcome, with the last output.
    pub ended: Option<Summary>,
}

impl RequestOutput {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.hidden.clear();
        self.cached = None;
        self.ended = None;
    }
}
