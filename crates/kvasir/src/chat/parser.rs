//! Parses the tokens of a chat answer into deltas.

use crate::answer::Piece;
use crate::chat::answer::{ChatAnswer, ChatAnswerBuilder};
use kvasir_chat::{Choice, Delta, Detokenizer, ParseOptions};
use kvasir_engine::Finish;
use std::collections::VecDeque;

/// Streaming parser of one chat answer.
pub(crate) struct ChatParser {
    detokenizer: Detokenizer,
    choice: Choice,
    builder: ChatAnswerBuilder,
    /// Parsed deltas that the stream has not returned yet.
    pub(super) deltas: VecDeque<Delta>,
    /// The whole answer, after the last piece.
    pub(super) answer: Option<ChatAnswer>,
}

impl ChatParser {
    pub(super) fn new(detokenizer: Detokenizer, options: ParseOptions) -> Self {
        Self {
            detokenizer,
            choice: Choice::new(options),
            builder: ChatAnswerBuilder::default(),
            deltas: VecDeque::new(),
            answer: None,
        }
    }

    /// Feeds a piece; drops the text after a stop text.
    pub(super) fn push(&mut self, piece: Piece) {
        for id in &piece.ids {
            if self.is_stopped() {
                break;
            }
            let text = self.detokenizer.push(*id);
            let deltas = self.choice.push(&text);
            self.take(piece.request.0, deltas);
        }
        if let Some(mut raw) = piece.answer {
            if !self.is_stopped() {
                let rest = self.detokenizer.finish();
                let deltas = self.choice.push(&rest);
                self.take(piece.request.0, deltas);
            }
            let deltas = self.choice.finish();
            if self.is_stopped() {
                raw.reason = Finish::StopText;
            }
            self.take(piece.request.0, deltas);
            self.answer = Some(self.builder.finish(raw));
        }
    }

    /// Whether a stop text has ended the answer.
    pub(super) fn is_stopped(&self) -> bool {
        self.choice.stopped().is_some()
    }

    fn take(&mut self, request: u64, deltas: Vec<Delta>) {
        deltas.iter().for_each(|delta| self.builder.push(request, delta));
        self.deltas.extend(deltas);
    }
}
