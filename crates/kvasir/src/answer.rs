use kvasir_engine::{Finish, RequestId, Summary};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;
use std::time::Duration;

/// What one request yielded.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its ids, the one that ended it included.
    pub ids: Vec<Token>,
    /// Their text without special tokens; none where the model has no tokenizer.
    pub text: Option<String>,
    /// Why it ended. [`Finish::Failed`] and [`Finish::Capacity`] leave what there was until then.
    pub reason: Finish,
    /// Log-probabilities of `ids`, if they were asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the prompt whose K and V were there already.
    pub cached: u32,
    /// Time to the first token, waiting included.
    pub ttft: Option<Duration>,
    /// Time per output token after the first.
    pub tpot: Option<Duration>,
}

impl Answer {
    pub(crate) fn new(
        summary: &Summary,
        ids: Vec<Token>,
        text: Option<String>,
        logprobs: Vec<TokenLogprobs>,
    ) -> Self {
        Self {
            ids,
            text,
            reason: summary.finish,
            logprobs,
            prompt: summary.prompt,
            cached: summary.cached,
            ttft: summary.ttft().map(Duration::from_nanos),
            tpot: summary.tpot().map(Duration::from_nanos),
        }
    }
}

/// What a step brought for one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The request.
    pub request: RequestId,
    /// New ids.
    pub ids: Vec<Token>,
    /// The text that they complete. A character that spans several tokens comes with its last.
    pub text: String,
    /// Set on the request's last piece: all of it together.
    pub answer: Option<Answer>,
}
