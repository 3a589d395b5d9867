use crate::gguf::Gguf;

/// What a GGUF file says a token is.
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
    /// Where a file lists the kinds of all tokens.
    pub(crate) const KEY: &str = "tokenizer.ggml.token_type";

    /// The list, if there is one.
    pub(super) fn list(gguf: &Gguf) -> Option<Vec<Self>> {
        Some(gguf.array(Self::KEY)?.scalars().map(|number| Self::of(number.as_u64())).collect())
    }

    /// What stands for no kind is an ordinary token.
    fn of(number: Option<u64>) -> Self {
        let others = [Self::Unknown, Self::Control, Self::User, Self::Unused, Self::Byte];
        others.into_iter().find(|kind| number == Some(*kind as u64)).unwrap_or(Self::Normal)
    }

    /// Whether a token of this kind is found in a text as a whole.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::User)
    }
}
