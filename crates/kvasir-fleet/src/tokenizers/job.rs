//! [`Job`]: a job of a tokenizer process, its result, and the messages between front and process.

use crate::message::Identity;
use kvasir_chat::{ChatModel, DetokenizerState};
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, atomic::AtomicBool};

/// Version of the message protocol.
pub(super) const PROTOCOL: u32 = 1;

/// Input of a job. The result depends on nothing else, so any process can run the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Tokenizes a text.
    Encode { text: String, add_special: bool },
    /// Detokenizes a complete sequence of tokens.
    Decode { ids: Vec<Token> },
    /// Detokenizes the next tokens of a stream.
    Detokenize { state: DetokenizerState, tokens: Vec<Token> },
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// Of `Work::Encode`.
    Tokens(Vec<Token>),
    /// Of `Work::Decode`.
    Text(String),
    /// Of `Work::Detokenize`: the text that each token completes, and the state after the last.
    Texts { texts: Vec<String>, state: DetokenizerState },
    /// Why the job failed: the tokenizer rejected the text or panicked, or the result is too large.
    Failed(String),
}

impl Work {
    /// Estimated run time, in units of one byte or token.
    pub(super) fn cost(&self) -> u64 {
        1 + match self {
            Self::Encode { text, .. } => text.len() as u64,
            Self::Decode { ids } => ids.len() as u64,
            Self::Detokenize { tokens, .. } => tokens.len() as u64,
        }
    }

    /// Whether the run time is so short that the job runs on the thread that reads the socket.
    pub(super) fn is_short(&self) -> bool {
        matches!(self, Self::Detokenize { .. })
    }

    /// Whether `outcome` has the type and length of a result of this work.
    pub(super) fn matches(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (_, Outcome::Failed(_))
            | (Self::Encode { .. }, Outcome::Tokens(_))
            | (Self::Decode { .. }, Outcome::Text(_)) => true,
            (Self::Detokenize { tokens, .. }, Outcome::Texts { texts, .. }) => texts.len() == tokens.len(),
            _ => false,
        }
    }

    /// Computes the result.
    pub(super) fn run(self, chat: &ChatModel, canceled: &Arc<AtomicBool>) -> Outcome {
        match self {
            Self::Encode { text, add_special } => {
                let tokens = chat.tokenizer().encode_cancelable(&text, add_special, canceled);
                tokens.map_or_else(|error| Outcome::Failed(error.to_string()), Outcome::Tokens)
            }
            Self::Decode { ids } => Outcome::Text(chat.decode(&ids)),
            Self::Detokenize { state, tokens } => {
                let mut detokenizer = chat.resume_detokenizer(state);
                let texts = tokens.into_iter().map(|token| detokenizer.push(token)).collect();
                Outcome::Texts { texts, state: detokenizer.into_state() }
            }
        }
    }
}

/// Work with the id of its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Job<W = Work> {
    pub(super) id: u64,
    pub(super) work: W,
}

/// A message from the front to a process. The front serializes `Job<&Work>` to avoid a copy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToTokenizer<W = Work> {
    /// The process is accepted.
    Welcome,
    /// The process is refused and must exit.
    Refused { why: String },
    /// Jobs to compute.
    Jobs(Vec<Job<W>>),
    /// Stop the job: its caller has canceled it.
    Cancel { id: u64 },
}

/// A message from a process to the front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromTokenizer {
    /// The first message, which the front answers with `Welcome` or `Refused`.
    Hello { protocol: u32, identity: Identity },
    /// Job ids with their results.
    Results(Vec<(u64, Outcome)>),
    /// Sent once per second while jobs run, so that the front does not consider the process hung.
    Heartbeat,
}
