//! The text of a token as the parsers of an answer read it: its bytes, or the spelling of a control
//! token that detokenization keeps.

use kvasir_kv::Token;
use llguidance::toktrie::{TokEnv, TokTrie};

/// Bytes by token.
pub(crate) struct TokenText {
    tok_env: TokEnv,
    /// Control tokens that detokenization keeps, with their spelling.
    control_tokens: Vec<(Token, String)>,
}

impl TokenText {
    pub(super) fn new(tok_env: TokEnv, control_tokens: Vec<(Token, String)>) -> Self {
        Self { tok_env, control_tokens }
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.tok_env.tok_trie()
    }

    /// The bytes that a token adds to the detokenized answer.
    pub(super) fn bytes(&self, token: Token) -> &[u8] {
        let bytes = self.trie().token(token);
        if is_text(bytes) {
            bytes
        } else {
            let control_tokens = self.control_tokens.iter().find(|(id, _)| *id == token);
            control_tokens.map_or(&[], |(_, spelling)| spelling.as_bytes())
        }
    }
}

/// Control tokens have a marker byte in front of their spelling; unused ids have no bytes.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|first| *first != TokTrie::SPECIAL_TOKEN_MARKER)
}
