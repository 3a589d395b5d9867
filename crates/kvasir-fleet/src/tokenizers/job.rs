//! [`Job`]: what a tokenizer process computes, its result, and the messages that carry both.

use crate::message::Identity;
use kvasir_chat::{ChatModel, DetokenizerState};
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, atomic::AtomicBool};

/// Version of the messages.
pub(super) const PROTOCOL: u32 = 1;

/// What a process computes. It depends on nothing else, so any process can compute it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Work {
    /// Tokenizes a text.
    Encode { text: String, add_special: bool },
    /// Detokenizes ids.
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
    /// The tokenizer refuses the text, or has failed.
    Failed(String),
}

impl Work {
    /// Estimate of its run time, in bytes of text.
    pub(super) fn weight(&self) -> u64 {
        1 + match self {
            Self::Encode { text, .. } => text.len() as u64,
            Self::Decode { ids } => ids.len() as u64,
            Self::Detokenize { tokens, .. } => tokens.len() as u64,
        }
    }

    /// Whether it takes so little time that it runs on the thread that reads the socket.
    pub(super) fn is_short(&self) -> bool {
        matches!(self, Self::Detokenize { .. })
    }

    /// Whether an outcome can be that of this work.
    pub(super) fn matches(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (_, Outcome::Failed(_))
            | (Self::Encode { .. }, Outcome::Tokens(_))
            | (Self::Decode { .. }, Outcome::Text(_)) => true,
            (Self::Detokenize { tokens, .. }, Outcome::Texts { texts, .. }) => texts.len() == tokens.len(),
            _ => false,
        }
    }

    /// Computes it.
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

/// Work with its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Job<W = Work> {
    pub(super) id: u64,
    pub(super) work: W,
}

/// From the front to a process. The front writes `W` as a reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum ToTokenizer<W = Work> {
    /// The process is accepted.
    Welcome,
    /// The process is refused and must exit.
    Refused { why: String },
    /// Jobs to compute.
    Jobs(Vec<Job<W>>),
    /// The result of a job is no longer wanted.
    Cancel { id: u64 },
}

/// From a process to the front.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum FromTokenizer {
    /// The first message.
    Hello { protocol: u32, identity: Identity },
    /// Results by the id of their job.
    Results(Vec<(u64, Outcome)>),
    /// Sent once per second while jobs run.
    Busy,
}
