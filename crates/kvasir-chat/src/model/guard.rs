//! Keeps client text from becoming control tokens: a guard character splits their spellings before
//! rendering, and rendered text is tokenized piecewise between guards.

use crate::model::raw_arguments::PLACEHOLDER;
use serde_json::Value;

/// Inserted after the first character of a control token's spelling in client text. A noncharacter;
/// one that the client sends is replaced by U+FFFD.
pub(super) const GUARD: char = '\u{fdd0}';
/// Inserted into a message's text to find that position in the rendered prompt: the end of a
/// message to continue, the beginning of a marked message, or the end of the earlier conversation.
pub(super) const POSITION_MARK: char = '\u{fdd1}';

/// The spellings of a model's control tokens.
pub(super) struct Guard(pub(super) Vec<String>);

impl Guard {
    /// Guards every control token's spelling in the strings and keys of a JSON value.
    pub(super) fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => {
                Value::Object(map.iter().map(|(key, item)| (self.text(key), self.value(item))).collect())
            }
            other => other.clone(),
        }
    }

    /// Guards every control token's spelling in a text.
    pub(super) fn text(&self, text: &str) -> String {
        let text = text.replace([GUARD, POSITION_MARK, PLACEHOLDER], "\u{fffd}");
        self.0.iter().fold(text, |text, special| {
            let mut chars = special.chars();
            match chars.next().filter(|_| text.contains(special)) {
                Some(first) => text.replace(special, &format!("{first}{GUARD}{}", chars.as_str())),
                None => text,
            }
        })
    }
}
