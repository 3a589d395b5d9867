//! The text of a prompt, with guards inside spellings of control tokens in client text.

use crate::model::guard::GUARD;
use kvasir_kv::Token;

/// A rendered prompt. It is tokenized piecewise, so no token spans a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt(pub(super) String);

impl RenderedPrompt {
    /// The text, guards included.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Tokenizes the pieces between guards with `encode`, whose flag says whether to add special
    /// tokens: `add_special` for the first piece, else false.
    pub fn encode<E>(
        &self,
        add_special: bool,
        encode: impl FnMut(&str, bool) -> Result<Vec<Token>, E>,
    ) -> Result<Vec<Token>, E> {
        encode_pieces(&self.0, add_special, encode)
    }

    /// Number of tokens before byte `at` of the text, which has `tokens` tokens in all. Tokenizes
    /// the shorter side only; off by one if a token spans `at`.
    pub fn tokens_before<E>(
        &self,
        at: usize,
        tokens: u32,
        encode: impl FnMut(&str, bool) -> Result<Vec<Token>, E>,
    ) -> Result<u32, E> {
        let (before, behind) = self.0.split_at(at);
        if before.len() < behind.len() {
            encode_pieces(before, false, encode).map(|ids| (ids.len() as u32).min(tokens))
        } else {
            encode_pieces(behind, false, encode).map(|ids| tokens.saturating_sub(ids.len() as u32))
        }
    }

    /// Byte length of the longest common prefix of two prompts.
    pub fn common_prefix(&self, other: &Self) -> usize {
        let same = self.0.bytes().zip(other.0.bytes()).take_while(|(a, b)| a == b).count();
        self.0.floor_char_boundary(same)
    }
}

fn encode_pieces<E>(
    text: &str,
    add_special: bool,
    mut encode: impl FnMut(&str, bool) -> Result<Vec<Token>, E>,
) -> Result<Vec<Token>, E> {
    let mut ids = Vec::new();
    for (i, piece) in text.split(GUARD).enumerate() {
        ids.extend(encode(piece, add_special && i == 0)?);
    }
    Ok(ids)
}
