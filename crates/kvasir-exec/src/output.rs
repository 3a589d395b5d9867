use crate::Drawn;
use kvasir_kv::{Span, Token};
use serde::{Deserialize, Serialize};

/// Log-probabilities of one sampled token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub chosen: f32,
    /// The likeliest ids with theirs, best first.
    pub top: Vec<(Token, f32)>,
}

/// What one row of a batch yielded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRow {
    /// The row's sampled tokens in [`Output::tokens`]: one per input token from `sample_from` on. With drafts, the
    /// first is the target's token after the newest committed one, the next after the first draft, and so on.
    pub tokens: Span,
}

/// What a step yielded, row for row of its batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// One entry per row of the batch.
    pub rows: Vec<OutputRow>,
    /// All sampled tokens.
    pub tokens: Vec<Token>,
    /// Log-probabilities of `tokens`, for rows that asked; empty if none did.
    pub logprobs: Vec<Option<TokenLogprobs>>,
    /// Log-probabilities of prompts' tokens: of each row in order as many as its [`BatchRow::scored`](crate::BatchRow::scored) has; empty if none asked.
    #[serde(default)]
    pub scores: Vec<TokenLogprobs>,
    /// Logits of every sampled token's row, one whole vocabulary after the other; empty unless the batch asked.
    pub logits: Vec<f32>,
    /// Hidden states after the final norm, one for each row of the batch that [wants it](crate::BatchRow::wants_hidden), in order.
    #[serde(default)]
    pub hidden: Vec<f32>,
    /// Rows of the batch whose logits were no numbers to draw from, in order; they have no tokens.
    #[serde(default)]
    pub broken: Vec<u32>,
    /// Time the step took on the device, in nanoseconds of whatever clock the executor lives by.
    pub device_ns: u64,
}

impl Output {
    /// Empties it for the next step, keeping its memory.
    pub fn reset(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.logits.clear();
        self.hidden.clear();
        self.broken.clear();
        self.device_ns = 0;
    }

    /// The `i`-th row's token, if it yielded just one.
    pub fn only_token(&self, i: usize) -> Option<Token> {
        let span = self.rows.get(i)?.tokens;
        if span.len == 1 { self.tokens.get(span.start as usize).copied() } else { None }
    }

    /// Adds what one row drew; `drawn` keeps its memory.
    pub fn push(&mut self, drawn: &mut Drawn) {
        if drawn.broken {
            self.broken.push(self.rows.len() as u32);
        }
        self.rows.push(OutputRow { tokens: Span::new(self.tokens.len(), drawn.tokens.len()) });
        if !drawn.logprobs.is_empty() {
            // Rows before it that did not ask have none.
            self.logprobs.resize(self.tokens.len(), None);
            self.logprobs.extend(drawn.logprobs.drain(..).map(Some));
        }
        self.scores.append(&mut drawn.scores);
        self.tokens.extend_from_slice(&drawn.tokens);
        if !self.logprobs.is_empty() {
            self.logprobs.resize(self.tokens.len(), None);
        }
    }
}
