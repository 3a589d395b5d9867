//! [`Pooling`]: how the hidden states of a sequence become one vector.

use serde::{Deserialize, Serialize};

/// How the hidden states of a sequence become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean over all tokens, special tokens included; summed in order of position.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
}

impl Pooling {
    /// By its name under the config key `pooling_mode`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "mean" => Some(Self::Mean),
            "cls" => Some(Self::Cls),
            "lasttoken" => Some(Self::Last),
            _ => None,
        }
    }

    /// Its name under the config key `pooling_mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "lasttoken",
        }
    }
}
