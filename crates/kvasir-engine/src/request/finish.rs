//! Finish reasons, faults and refusals of requests, with the error messages that clients read.

use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A request parameter that can be invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // each is the parameter of that name
#[non_exhaustive]
pub enum Parameter {
    Temperature,
    TopP,
    MinP,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    TypicalP,
    TopNSigma,
    XtcProbability,
    XtcThreshold,
    DynatempRange,
    DynatempExponent,
    DryMultiplier,
    DryBase,
    MirostatTau,
    MirostatEta,
    LogitBias,
    Stop,
    MaxTokens,
    MinTokens,
    N,
}

impl Parameter {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::RepetitionPenalty => "repetition_penalty",
            Self::PresencePenalty => "presence_penalty",
            Self::FrequencyPenalty => "frequency_penalty",
            Self::TypicalP => "typical_p",
            Self::TopNSigma => "top_n_sigma",
            Self::XtcProbability => "xtc_probability",
            Self::XtcThreshold => "xtc_threshold",
            Self::DynatempRange => "dynatemp_range",
            Self::DynatempExponent => "dynatemp_exponent",
            Self::DryMultiplier => "dry_multiplier",
            Self::DryBase => "dry_base",
            Self::MirostatTau => "mirostat_tau",
            Self::MirostatEta => "mirostat_eta",
            Self::LogitBias => "logit_bias",
            Self::Stop => "stop",
            Self::MaxTokens => "max_tokens",
            Self::MinTokens => "min_tokens",
            Self::N => "n",
        }
    }

    /// Its valid range, as text for the error message.
    pub fn range(self) -> &'static str {
        match self {
            Self::Temperature
            | Self::DynatempRange
            | Self::DynatempExponent
            | Self::DryMultiplier
            | Self::MirostatTau
            | Self::MirostatEta => "a number of at least 0",
            Self::DryBase => "a number of at least 1",
            Self::TopP => "above 0 and at most 1",
            Self::MinP | Self::TypicalP | Self::XtcProbability | Self::XtcThreshold => "between 0 and 1",
            Self::RepetitionPenalty => "a number above 0",
            Self::PresencePenalty | Self::FrequencyPenalty | Self::TopNSigma => "a finite number",
            Self::LogitBias => "numbers",
            Self::Stop => "sequences of at least one token",
            Self::MaxTokens => "at most its value at admission",
            Self::MinTokens => "at most max_tokens",
            Self::N => "at least 1",
        }
    }
}

/// Why a request was rejected before running.
#[allow(missing_docs)] // the fields: what was given, and the limit
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The prompt is empty.
    EmptyPrompt,
    /// Longer than the model's context allows.
    TooLong { tokens: u32, limit: u32 },
    /// Needs more KV slots than the cache has.
    NeverFits { needed: u32, capacity: u32 },
    /// The prompt does not extend past the frozen shared prefix.
    WithinPrefix { tokens: u32, prefix: u32 },
    /// It needs a recurrent-state slot, and the engine has none.
    NoState,
    /// The prompt exceeds one step's token budget, and chunked prefill is off.
    OverBudget { tokens: u32, budget: u32 },
    /// Backpressure: the waiting queue is full.
    QueueFull { limit: u32 },
    /// A parameter is out of range.
    BadParameter(Parameter),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPrompt => write!(f, "prompt: must have at least one token"),
            Self::TooLong { tokens, limit } => {
                write!(f, "prompt: `{tokens}` tokens exceed the limit of {limit}; shorten it")
            }
            Self::NeverFits { needed, capacity } => {
                write!(
                    f,
                    "prompt: needs `{needed}` KV slots of {capacity}; shorten it or raise the KV capacity"
                )
            }
            Self::WithinPrefix { tokens, prefix } => {
                write!(
                    f,
                    "prompt: `{tokens}` tokens do not extend past the shared prefix of {prefix}; append a token"
                )
            }
            Self::OverBudget { tokens, budget } => {
                write!(
                    f,
                    "prompt: `{tokens}` tokens exceed the step budget of {budget}; shorten it or enable chunked prefill"
                )
            }
            Self::NoState => write!(f, "the request needs a recurrent-state slot, and `state_slots` is 0"),
            Self::QueueFull { limit } => {
                write!(f, "the queue is full with {limit} waiting requests; retry later")
            }
            Self::BadParameter(which) => write!(f, "{}: must be {}", which.name(), which.range()),
        }
    }
}

impl std::error::Error for Refusal {}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// Its step failed on the executor.
    Step,
    /// Its step ran out of memory.
    OutOfMemory,
    /// The executor is lost.
    DeviceLost,
    /// Constrained decoding: no token was allowed, or the constraint exceeded its limits.
    Constraint,
    /// The logits contained NaN or infinity.
    NotFinite,
    /// The request or its results exceed the maximum message size between server and worker
    /// process.
    MessageSize,
    /// A bug: the step lacked an output, or the cache rejected a valid operation.
    Internal,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finish {
    /// A stop sequence matched.
    StopSequence {
        /// Its index in `Params::stop_sequences`.
        index: u32,
    },
    /// An end-of-sequence token.
    Eos,
    /// A stop token id.
    StopId(Token),
    /// `max_tokens` reached.
    MaxTokens,
    /// `max_model_len` reached.
    ModelLength,
    /// The encoder has returned the vector or the scores of the text.
    Encoded,
    /// The KV cache is full and nothing is left to preempt or evict.
    Capacity,
    /// The detokenizer found a stop string.
    StopText,
    /// Its client disconnected or canceled.
    Aborted,
    /// It failed.
    Failed(Fault),
    /// It was rejected before running.
    Refused(Refusal),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Step => "its step failed on the device",
            Self::OutOfMemory => "its step ran out of memory",
            Self::DeviceLost => "the device is lost",
            Self::Constraint => "the grammar allows no further token, or its matcher exceeded a limit",
            Self::NotFinite => {
                "the logits are not finite numbers: weights or config are broken, or the arithmetic overflows"
            }
            Self::MessageSize => {
                "the request or its results are too large for the messages between the server and its workers"
            }
            Self::Internal => "its step returned no output for it: a bug",
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
            Self::Encoded => write!(f, "encoded"),
            Self::Capacity => write!(f, "capacity"),
            Self::StopText => write!(f, "stop_text"),
            Self::Aborted => write!(f, "aborted"),
            Self::Failed(_) => write!(f, "failed"),
            Self::Refused(_) => write!(f, "refused"),
        }
    }
}
