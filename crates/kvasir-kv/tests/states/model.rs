//! `Model`: the expected state of a sequence, and the claimed steps that change it.

use kvasir_kv::{Position, SeqId, StepId, Token};

/// The expected state of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Claimed tokens.
    pub(crate) tokens: Vec<Token>,
    /// Tokens that are fed before random ones.
    pub(crate) prompt: Vec<Token>,
    pub(crate) salt: u64,
    pub(crate) family: u32,
    /// Positions at which steps had to store a checkpoint, including those of the sequence that it
    /// was forked from.
    pub(crate) due: Vec<Position>,
    /// Number of tokens that the live state covers: all but drafts that were not replayed yet.
    pub(crate) committed: Position,
    /// Marks that no step has reached.
    pub(crate) marks: Vec<Position>,
}

impl Model {
    pub(crate) fn end(&self) -> Position {
        self.tokens.len() as Position
    }

    pub(crate) fn truncate(&mut self, to: Position) {
        self.tokens.truncate(to as usize);
        self.committed = self.committed.min(to);
        self.due.retain(|at| *at <= to);
        self.marks.clear();
    }
}

/// One row of a claimed step.
pub(crate) struct ClaimedRow {
    pub(crate) seq: SeqId,
    /// The sequence before the claim.
    pub(crate) before: Model,
    /// Number of tokens fed, drafts included.
    pub(crate) tokens: u32,
    pub(crate) drafts: u32,
}

pub(crate) struct ClaimedStep {
    pub(crate) step: StepId,
    pub(crate) rows: Vec<ClaimedRow>,
}
