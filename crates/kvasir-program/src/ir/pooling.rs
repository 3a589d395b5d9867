//! [`Pooling`]: how the hidden states of a sequence become one vector.

use serde::{Deserialize, Serialize};

/// The pooling mode of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean over all tokens, special tokens included. The sum is in order of position, so that
    /// its bits do not depend on the batch.
    Mean,
    /// The hidden state of the first token (`[CLS]`).
    Cls,
    /// The hidden state of the last token.
    Last,
}

impl Pooling {
    /// The pooling mode of this name, as in the config key `pooling_mode`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "mean" => Some(Self::Mean),
            "cls" => Some(Self::Cls),
            "lasttoken" => Some(Self::Last),
            _ => None,
        }
    }

    /// The value of the config key `pooling_mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "lasttoken",
        }
    }
}
