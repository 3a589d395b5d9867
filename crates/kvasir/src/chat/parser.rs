//! Parses the tokens of a chat answer into deltas.

use crate::answer::Piece;
use crate::chat::answer::{ChatAnswer, Collected};
use kvasir_chat::{Choice, Delta, Detokenizer, ParseOptions};
use std::collections::VecDeque;

/// Parses the pieces of one answer.
pub(crate) struct ChatParser {
    detokenizer: Detokenizer,
    choice: Choice,
    collected: Collected,
    /// Deltas not taken yet.
    pub(super) deltas: VecDeque<Delta>,
    pub(super) answer: Option<ChatAnswer>,
}

impl ChatParser {
    pub(super) fn new(detokenizer: Detokenizer, options: ParseOptions) -> Self {
        Self {
            detokenizer,
            choice: Choice::new(options),
            collected: Collected::default(),
            deltas: VecDeque::new(),
            answer: None,
        }
    }

    /// Feeds a piece. Text behind a stop text is dropped.
    pub(super) fn push(&mut self, piece: Piece) {
        for id in &piece.ids {
            if self.is_stopped() {
                break;
            }
            let text = self.detokenizer.push(*id);
            let deltas = self.choice.push(&text);
            self.take(piece.request.0, deltas);
        }
        if let Some(raw) = piece.answer {
            if !self.is_stopped() {
                let rest = self.detokenizer.finish();
                let deltas = self.choice.push(&rest);
                self.take(piece.request.0, deltas);
            }
            let deltas = self.choice.finish();
            self.take(piece.request.0, deltas);
            self.answer = Some(self.collected.finish(raw));
        }
    }

    /// Whether a stop text has ended the answer.
    pub(super) fn is_stopped(&self) -> bool {
        self.choice.stopped().is_some()
    }

    fn take(&mut self, request: u64, deltas: Vec<Delta>) {
        deltas.iter().for_each(|delta| self.collected.push(request, delta));
        self.deltas.extend(deltas);
    }
}
