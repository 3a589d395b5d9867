//! The output of one step: sampled tokens, log-probabilities, logits and hidden states.
//!
//! `Output::rows[i]` belongs to `Batch::rows[i]`. The vectors keep their capacity between steps, so
//! the steady state allocates nothing. `logprobs` and `scores` stay empty if no row of the step
//! requests them.

use crate::batch::{BatchRow, RowKind};
use kvasir_kv::{Span, Token};
use serde::{Deserialize, Serialize};

/// Sampled token of a draft after which the row's constraint allows no token. If that draft is
/// accepted, the sequence ends behind it.
pub const NO_TOKEN: Token = Token::MAX;

/// Log-probabilities at one sampled position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprobs {
    /// Of the sampled token.
    pub chosen: f32,
    /// The most likely ids with their log-probabilities, in descending order.
    pub top: Vec<(Token, f32)>,
}

/// The output of one row of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRow {
    /// The row's sampled tokens in [`Output::tokens`]: one per input token from `sample_from` on.
    ///
    /// With drafts, the first is the target's token after the newest committed token, the next the
    /// one after the first draft, and so on. Behind a draft it may be [`NO_TOKEN`].
    pub tokens: Span,
}

/// A token that a draft model proposes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DraftCandidate {
    /// The token.
    pub token: Token,
    /// Number of the candidate of the same proposal that it continues; −1 for the newest token.
    pub parent: i32,
    /// Distance from the newest token, from 1.
    pub level: u32,
    /// Log-probability after its parent, by the draft model.
    pub log_probability: f32,
    /// The same with all candidates before it.
    pub cumulative: f32,
    /// Whether it is among those that the target is to verify. Its parent is then, too.
    pub kept: bool,
}

/// The proposal of a draft model for the next step of one row's sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftProposal {
    /// The row of the batch.
    pub row: u32,
    /// Its candidates in [`Output::candidates`]; a parent precedes its children.
    pub candidates: Span,
}

/// The output of a step, in the row order of its batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// One entry per row of the batch.
    pub rows: Vec<OutputRow>,
    /// Sampled tokens of all rows, concatenated.
    pub tokens: Vec<Token>,
    /// Log-probabilities of `tokens`; `None` for rows that do not request them. Empty if no row
    /// does.
    pub logprobs: Vec<Option<TokenLogprobs>>,
    /// Log-probabilities of prompt tokens: per row as many as its
    /// [`BatchRow::scored`](crate::batch::BatchRow::scored) has, in row order. Empty if no row requests
    /// them.
    #[serde(default)]
    pub scores: Vec<TokenLogprobs>,
    /// Raw logits at every sampled position, `vocab` numbers each; empty unless
    /// [`Batch::logits`](crate::batch::Batch::logits) is set.
    pub logits: Vec<f32>,
    /// Hidden states after the final norm; of encoders, pooled vectors or scores. One per row
    /// that [wants one](crate::batch::BatchRow::wants_hidden), in row order.
    #[serde(default)]
    pub hidden: Vec<f32>,
    /// Rows of the batch whose logits contained NaN or +infinity, in ascending order; they have no
    /// tokens.
    #[serde(default)]
    pub broken: Vec<u32>,
    /// Dummy tokens that the step was padded with.
    #[serde(default)]
    pub padding: u32,
    /// Device time of the step in nanoseconds, by the executor's own clock; without drafting.
    pub device_ns: u64,
    /// What the executor's draft model proposes for the rows that ask for it
    /// ([`BatchRow::draft_depth`](crate::batch::BatchRow::draft_depth)).
    #[serde(default)]
    pub proposals: Vec<DraftProposal>,
    /// The candidates of all proposals.
    #[serde(default)]
    pub candidates: Vec<DraftCandidate>,
    /// Device time of the draft model after this step, in nanoseconds.
    #[serde(default)]
    pub draft_ns: u64,
    /// Why the draft model failed after this step, which then has no proposals.
    #[serde(default)]
    pub draft_error: Option<String>,
    /// Number of tokens of each data-parallel replica in this step, if they run in lockstep.
    #[serde(default)]
    pub num_tokens_across_dp: Vec<u32>,
}

/// The sampling result of one row of a step.
#[derive(Debug, Default)]
pub struct Drawn {
    /// Sampled tokens, one per row of logits. Empty if the constraint allows no token or the logits
    /// are broken.
    pub tokens: Vec<Token>,
    /// Log-probabilities of each sampled token; empty unless requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log-probabilities of the prompt tokens that follow the row's scored positions.
    pub scores: Vec<TokenLogprobs>,
    /// A row of logits contained NaN or +infinity, so no token is sampled.
    pub broken: bool,
}

impl Output {
    /// Clears it for the next step and keeps the allocated capacity.
    pub fn reset(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.logits.clear();
        self.hidden.clear();
        self.broken.clear();
        self.padding = 0;
        self.device_ns = 0;
        self.proposals.clear();
        self.candidates.clear();
        self.draft_ns = 0;
        self.draft_error = None;
        self.num_tokens_across_dp.clear();
    }

    /// Removes the entries of the batch's dummy rows, `rows` being its rows, and counts their tokens.
    pub(crate) fn drop_dummies(&mut self, rows: &[BatchRow]) {
        let is_real = |row: &BatchRow| row.kind != RowKind::Dummy;
        let real_before = |at: &u32| rows.iter().take(*at as usize).filter(|row| is_real(row)).count() as u32;
        let mut at = rows.iter();
        self.rows.retain(|_| at.next().is_none_or(is_real));
        self.broken.iter_mut().for_each(|at| *at = real_before(at));
        self.proposals.iter_mut().for_each(|proposal| proposal.row = real_before(&proposal.row));
        self.padding = rows.iter().filter(|row| !is_real(row)).map(|row| row.tokens.len).sum();
    }

    /// The token of row `i`, if it yielded exactly one.
    pub fn only_token(&self, i: usize) -> Option<Token> {
        let span = self.rows.get(i)?.tokens;
        if span.len == 1 { self.tokens.get(span.start as usize).copied() } else { None }
    }

    /// Appends the results of an encoder's rows, without tokens. `pooled` holds one vector for each
    /// row for which `BatchRow::samples` is true. Rows with non-finite vectors are added to
    /// `broken`.
    pub fn push_pooled(&mut self, rows: &[BatchRow], pooled: &[f32]) {
        let samples = |row: &&BatchRow| row.samples();
        let width = pooled.len().checked_div(rows.iter().filter(samples).count()).unwrap_or(0);
        let mut vectors = pooled.chunks_exact(width.max(1));
        for row in rows {
            let vector = if row.samples() { vectors.next() } else { None }.unwrap_or_default();
            if vector.iter().any(|number| !number.is_finite()) {
                self.broken.push(self.rows.len() as u32);
            }
            if row.wants_hidden() {
                self.hidden.extend_from_slice(vector);
            }
            self.rows.push(OutputRow::default());
        }
    }

    /// Appends the result of the next row of the batch, in its order; `drawn` keeps its capacity.
    pub fn push(&mut self, drawn: &mut Drawn) {
        if drawn.broken {
            self.broken.push(self.rows.len() as u32);
        }
        self.rows.push(OutputRow { tokens: Span::new(self.tokens.len(), drawn.tokens.len()) });
        if !drawn.logprobs.is_empty() {
            // Pad earlier rows that did not request log-probabilities.
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
