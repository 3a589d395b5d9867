//! Errors of prompt rendering and of answer constraints.

use std::fmt;

/// A chat that cannot be rendered, or whose answer cannot be constrained.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatError {
    /// A parameter has an invalid value.
    Invalid {
        /// The parameter, by the name under which the caller passed it.
        parameter: String,
        /// The whole error message; it names the parameter where that helps.
        message: String,
    },
    /// The model does not support the parameter.
    Unsupported {
        /// The parameter, by the name under which the caller passed it.
        parameter: String,
        /// What the model lacks, as a clause: "the model's vocabulary has no …".
        reason: &'static str,
    },
    /// The backend computes no logits, so it cannot constrain answers.
    NoLogits {
        /// The feature that needs logits, as a noun for the error message.
        feature: &'static str,
    },
}

impl ChatError {
    /// An [`Invalid`](Self::Invalid) error; `message` is the whole text.
    pub(crate) fn invalid(parameter: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { parameter: parameter.into(), message: message.into() }
    }
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { message, .. } => f.write_str(message),
            Self::Unsupported { parameter, reason } => write!(f, "`{parameter}` is not supported: {reason}"),
            Self::NoLogits { feature } => {
                write!(f, "{feature} needs logits, which the simulated device does not compute")
            }
        }
    }
}

impl std::error::Error for ChatError {}
