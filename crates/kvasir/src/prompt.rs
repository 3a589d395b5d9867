//! Prompt type of the library: text or token ids.

use kvasir_kv::Token;

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text; the tokenizer adds its special tokens.
    Text(String),
    /// Token ids, used verbatim.
    Ids(Vec<Token>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(ids: Vec<Token>) -> Self {
        Self::Ids(ids)
    }
}

impl From<&[Token]> for Prompt {
    fn from(ids: &[Token]) -> Self {
        Self::Ids(ids.to_vec())
    }
}

impl<const N: usize> From<[Token; N]> for Prompt {
    fn from(ids: [Token; N]) -> Self {
        Self::Ids(ids.to_vec())
    }
}
