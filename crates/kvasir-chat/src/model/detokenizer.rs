//! Streaming detokenizer of answers, and its state, from which another process can continue.

use kvasir_formats::{TextStream, Tokenizer};
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// State of a [`Detokenizer`] between two tokens: at most the bytes of one incomplete character.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetokenizerState {
    /// Whether the markers of tool calls and reasoning are kept.
    is_marked: bool,
    text: TextStream,
}

impl DetokenizerState {
    /// The state before the first token; see [`ChatModel::detokenizer`](crate::ChatModel::detokenizer).
    pub fn new(marked: bool, continues: bool, skip_special: bool) -> Self {
        let text =
            if continues { TextStream::continuing(skip_special) } else { TextStream::new(skip_special) };
        Self { is_marked: marked, text }
    }

    pub(super) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Flushes incomplete bytes at the end.
    pub fn finish(&mut self) -> String {
        self.text.finish()
    }
}

/// Streaming detokenizer that keeps the markers of tool calls and reasoning.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Control tokens that are kept.
    markers: Arc<[(Token, String)]>,
    state: DetokenizerState,
}

impl Detokenizer {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        markers: Arc<[(Token, String)]>,
        state: DetokenizerState,
    ) -> Self {
        Self { tokenizer, markers, state }
    }

    /// Feeds a token; returns the text that it completes.
    pub fn push(&mut self, token: Token) -> String {
        match self.markers.iter().find(|(id, _)| *id == token) {
            Some((_, spelling)) => self.state.finish() + spelling,
            None => self.state.text.push(&self.tokenizer, token),
        }
    }

    /// Flushes incomplete bytes at the end.
    pub fn finish(&mut self) -> String {
        self.state.finish()
    }

    /// The state after the last token.
    pub fn into_state(self) -> DetokenizerState {
        self.state
    }
}
