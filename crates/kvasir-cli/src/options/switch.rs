//! On/off option type, and parsing of option words through serde.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// An option that is `on` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }

    /// Parses `on` or `off`.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        word(text)
    }
}

/// Parses a word by its serde representation, as in files.
pub(crate) fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|error| error.to_string())
}
