//! [`RemoteTokenizer`]: the interface of a server to tokenizers in other processes.

use crate::model::detokenizer::DetokenizerState;
use kvasir_kv::Token;
use serde::Serialize;
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
};

/// Why a text could not be tokenized, or tokens not be detokenized, in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoteTokenizerError {
    /// The tokenizer refuses the text, or the caller has canceled the work.
    Refused(String),
    /// No process could do the work.
    Unavailable(String),
}

impl fmt::Display for RemoteTokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "{why}"),
            Self::Unavailable(why) => write!(f, "tokenizer: {why}"),
        }
    }
}

impl std::error::Error for RemoteTokenizerError {}

/// Texts of consecutive tokens of a stream, and the state after the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DetokenizedTokens {
    /// The text that each token completes.
    pub texts: Vec<String>,
    /// The state of the stream's detokenizer after these tokens.
    pub state: DetokenizerState,
}

/// A pending detokenization.
pub type PendingTexts = Pin<Box<dyn Future<Output = Result<DetokenizedTokens, RemoteTokenizerError>> + Send>>;

/// Status of a tokenizer process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenizerStatus {
    /// Its index.
    pub tokenizer: usize,
    /// Whether it accepts jobs.
    pub is_ready: bool,
    /// Id of its process, if one is running.
    pub process: Option<u32>,
    /// Jobs that it has received and not answered.
    pub jobs: u64,
    /// Jobs that it has answered.
    pub completed_jobs: u64,
    /// Its processes that have ended or failed to start.
    pub restarts: u32,
    /// Its processes that were killed because they did not answer in time.
    pub hangs: u32,
    /// Messages of its processes that were dropped: malformed, too large or out of order.
    pub dropped_messages: u64,
    /// How its last process ended, if one did.
    pub last_exit: Option<String>,
}

/// Tokenizers in other processes. Results are those of the model's own tokenizer, byte for byte.
pub trait RemoteTokenizer: Send + Sync {
    /// Tokenizes a text; see [`Tokenizer::encode`](kvasir_formats::Tokenizer::encode). Blocks, and
    /// fails soon after `canceled` is set.
    fn encode(
        &self,
        text: &str,
        add_special: bool,
        canceled: &Arc<AtomicBool>,
    ) -> Result<Vec<Token>, RemoteTokenizerError>;

    /// Detokenizes ids; see [`ChatModel::decode`](crate::ChatModel::decode). Blocks, and fails soon
    /// after `canceled` is set.
    fn decode(&self, ids: &[Token], canceled: &Arc<AtomicBool>) -> Result<String, RemoteTokenizerError>;

    /// Detokenizes the next tokens of a stream whose detokenizer has this state.
    fn detokenize(&self, state: DetokenizerState, tokens: Vec<Token>) -> PendingTexts;

    /// Status of all processes.
    fn status(&self) -> Vec<TokenizerStatus>;
}
