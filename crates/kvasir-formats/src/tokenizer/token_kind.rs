//! GGUF token types.

use crate::gguf::reader::Gguf;

/// The type of a token in a GGUF vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    User = 4,
    Unused = 5,
    Byte = 6,
}

impl TokenKind {
    /// Metadata key of the token types.
    pub(crate) const KEY: &str = "tokenizer.ggml.token_type";

    /// The token types of a file, if listed.
    pub(super) fn list(gguf: &Gguf) -> Option<Vec<Self>> {
        Some(gguf.array(Self::KEY)?.scalars().map(|number| Self::of(number.as_u64())).collect())
    }

    /// Unknown type numbers count as normal tokens.
    fn of(number: Option<u64>) -> Self {
        let others = [Self::Unknown, Self::Control, Self::User, Self::Unused, Self::Byte];
        others.into_iter().find(|kind| number == Some(*kind as u64)).unwrap_or(Self::Normal)
    }

    /// Whether tokens of this type are matched in text as a whole.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::User)
    }
}
