//! Lengths of the prompt prefixes that a chat marks with `cache_control`.
//!
//! The conversation is rendered once more with a mark where the first uncovered message begins: what
//! both texts have in common is the prefix. Its tokens are counted in the shorter part of the text,
//! so a length may be wrong by a token where a merge crosses the border; blocks are much larger.

use crate::error::ApiError;
use crate::model::Model;
use crate::request::chat::ChatRequest;
use std::time::Duration;

/// A prefix of a prompt to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkedPrefix {
    /// Prompt tokens.
    pub(crate) len: u32,
    /// How long it is kept after its last use.
    pub(crate) ttl: Duration,
}

impl Model {
    /// The marked prefixes of a chat whose prompt has `tokens` tokens.
    pub(crate) fn marked_prefixes(
        &self,
        request: &ChatRequest,
        tokens: u32,
    ) -> Result<Vec<MarkedPrefix>, ApiError> {
        if request.cache_marks.is_empty() {
            return Ok(Vec::new());
        }
        let rendered = self.rendered_prompt(request, None)?;
        let prefix = |messages: usize| {
            if messages >= request.messages.len() {
                return Ok(tokens);
            }
            let marked = self.rendered_prompt(request, Some(messages))?;
            let at = rendered.common_prefix(&marked);
            rendered.tokens_before(at, tokens, |piece, special| self.encode_message(piece, special))
        };
        let marks = request.cache_marks.iter();
        marks.map(|mark| Ok(MarkedPrefix { len: prefix(mark.messages)?, ttl: mark.ttl })).collect()
    }
}
