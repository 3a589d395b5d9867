//! Finish reasons, faults and refusals of requests, with the error messages that clients read.

use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A parameter of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // each is the parameter of that name
pub enum Parameter {
    Temperature,
    TopP,
    MinP,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    LogitBias,
    Stop,
    MaxTokens,
    MinTokens,
    N,
}

impl Parameter {
    /// Its name as clients write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::LogitBias => "logit_bias",
            Self::Stop => "stop",
            Self::MaxTokens => "max_tokens",
            Self::MinTokens => "min_tokens",
            Self::N => "n",
        }
    }

    /// What it may be.
    pub fn range(self) -> &'static str {
        match self {
            Self::Temperature => "a number of at least 0",
            Self::TopP => "above 0 and at most 1",
            Self::MinP => "between 0 and 1",
            Self::RepetitionPenalty => "a number above 0",
            Self::PresencePenalty | Self::FrequencyPenalty => "a finite number",
            Self::LogitBias => "numbers",
            Self::Stop => "sequences of at least one token",
            Self::MaxTokens => "no more than it was when the request began to run",
            Self::MinTokens => "at most max_tokens",
            Self::N => "at least 1",
        }
    }
}

/// Why a request was never run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// A prompt needs at least one token.
    EmptyPrompt,
    /// Longer than the model takes.
    TooLong {
        /// Tokens of the prompt.
        tokens: u32,
        /// Tokens that would be taken.
        limit: u32,
    },
    /// More slots than the cache has.
    NeverFits {
        /// Slots needed.
        needed: u32,
        /// Slots there are.
        capacity: u32,
    },
    /// It has no token behind the frozen prefix on which the cache stands.
    WithinPrefix {
        /// Tokens of the prompt.
        tokens: u32,
        /// Tokens of the prefix.
        prefix: u32,
    },
    /// It keeps state, and there is no place for any.
    NoState,
    /// More tokens than one step takes, and prompts are not chunked.
    OverBudget {
        /// Tokens of the prompt.
        tokens: u32,
        /// Tokens of a step.
        budget: u32,
    },
    /// Too many requests wait already.
    QueueFull {
        /// How many may.
        limit: u32,
    },
    /// A parameter that makes no sense; names it.
    BadParameter(Parameter),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPrompt => write!(f, "prompt: must have at least one token"),
            Self::TooLong { tokens, limit } => {
                write!(f, "prompt: {tokens} tokens, the model takes {limit} and needs room for one more")
            }
            Self::NeverFits { needed, capacity } => {
                write!(f, "prompt: needs {needed} slots, the cache has {capacity}")
            }
            Self::WithinPrefix { tokens, prefix } => {
                write!(f, "prompt: {tokens} tokens, the shared prefix has {prefix} and one more is needed")
            }
            Self::OverBudget { tokens, budget } => {
                write!(f, "prompt: {tokens} tokens, a step takes {budget} and prompts are not chunked")
            }
            Self::NoState => write!(f, "it keeps state beside its K and V, and there is no place for any"),
            Self::QueueFull { limit } => write!(f, "{limit} requests wait already"),
            Self::BadParameter(which) => write!(f, "{}: must be {}", which.name(), which.range()),
        }
    }
}

impl std::error::Error for Refusal {}

/// What broke under a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The step it was in failed.
    Step,
    /// Memory could not be had for the step it was in.
    OutOfMemory,
    /// The executor is gone.
    DeviceLost,
    /// Nothing that its constraint allows could follow, or the constraint had become too large to follow.
    Constraint,
    /// The model's logits were not finite numbers.
    NotFinite,
    /// The step came back without what it had to yield, or the cache refused what it had promised.
    Internal,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// One of its stop sequences is complete.
    StopSequence {
        /// Which.
        index: u32,
    },
    /// An end-of-sequence token.
    Eos,
    /// One of its stop ids.
    StopId(Token),
    /// Its cap on output tokens.
    MaxTokens,
    /// The model takes no more.
    ModelLength,
    /// The cache is full and nobody is left to make room.
    Capacity,
    /// Somebody outside (the detokenizer) found a stop in its text.
    StopText,
    /// Its client left.
    Aborted,
    /// Something broke.
    Failed(Fault),
    /// It was never run.
    Refused(Refusal),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Step => "the step that it was in failed",
            Self::OutOfMemory => "memory could not be had for the step that it was in",
            Self::DeviceLost => "the device is gone",
            Self::Constraint => {
                "the answer came to a place from which the form asked for cannot be followed within the engine's limits"
            }
            Self::NotFinite => {
                "the model's logits are not finite numbers; its weights or its config are broken, or it overflows in this arithmetic"
            }
            Self::Internal => "the step that it was in did not yield what it had to",
        })
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StopSequence { .. } => write!(f, "stop_sequence"),
            Self::Eos => write!(f, "eos"),
            Self::StopId(id) => write!(f, "stop_{id}"),
            Self::MaxTokens => write!(f, "max_tokens"),
            Self::ModelLength => write!(f, "model_length"),
            Self::Capacity => write!(f, "capacity"),
            Self::StopText => write!(f, "stop_text"),
            Self::Aborted => write!(f, "aborted"),
            Self::Failed(_) => write!(f, "failed"),
            Self::Refused(_) => write!(f, "refused"),
        }
    }
}
