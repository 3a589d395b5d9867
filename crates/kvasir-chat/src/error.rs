//! Why a chat cannot be rendered or constrained.

use std::fmt;

/// Why a chat cannot be rendered, or its answer not be constrained.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatError {
    /// A parameter has a value that cannot be used.
    Invalid {
        /// The parameter, by the name under which the caller passed it.
        parameter: String,
        /// The whole message.
        message: String,
    },
    /// This model lacks what the parameter needs.
    Unsupported {
        /// The parameter, by the name under which the caller passed it.
        parameter: String,
        /// What the model lacks.
        reason: &'static str,
    },
    /// The backend computes no logits, so it cannot constrain answers.
    NoLogits {
        /// The feature.
        feature: &'static str,
    },
}

impl ChatError {
    /// A parameter with a value that cannot be used.
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
                write!(f, "there is no {feature}: the simulated device computes nothing")
            }
        }
    }
}

impl std::error::Error for ChatError {}
