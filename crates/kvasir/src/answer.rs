//! Result types of the library: the whole answer to a request, and one streamed piece.

use kvasir_engine::{Finish, PrefixMatch, RequestId, Summary};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;
use std::time::Duration;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Generated token ids, including a final stop token.
    pub ids: Vec<Token>,
    /// Their text without special tokens; `None` if the model has no tokenizer.
    pub text: Option<String>,
    /// Finish reason. With [`Finish::Failed`] and [`Finish::Capacity`] the answer is partial.
    pub reason: Finish,
    /// Log-probabilities of `ids`, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Prompt tokens.
    pub prompt: u32,
    /// Prompt tokens whose K/V was cached.
    pub cached: u32,
    /// How much of the prompt matched cached K/V, and why not more.
    pub prefix: PrefixMatch,
    /// Drafts that were verified.
    pub drafted: u32,
    /// Drafts that were accepted.
    pub accepted: u32,
    /// Time to first token (TTFT), queueing included.
    pub ttft: Option<Duration>,
    /// Time per output token (TPOT) after the first.
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
            prefix: summary.prefix,
            drafted: summary.drafted,
            accepted: summary.accepted,
            ttft: summary.ttft().map(Duration::from_nanos),
            tpot: summary.tpot().map(Duration::from_nanos),
        }
    }
}

/// Output of one step for one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Id of the request.
    pub request: RequestId,
    /// New token ids.
    pub ids: Vec<Token>,
    /// The text that they complete. A character that spans several tokens arrives with its last
    /// token.
    pub text: String,
    /// The whole answer, in the last piece.
    pub answer: Option<Answer>,
}

impl Piece {
    /// The last piece of an answer that was stopped: no new tokens.
    pub(crate) fn end(request: RequestId, answer: Answer) -> Self {
        Self { request, ids: Vec::new(), text: String::new(), answer: Some(answer) }
    }
}
