//! The step under construction: the rows that the policy has scheduled so far.

use crate::request::sequence::Sequence;
use crate::scheduler::budget::Commitment;
use kvasir_exec::RowKind;
use kvasir_kv::SeqId;

/// What a sequence is fed in this step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// New tokens.
    pub tokens: u32,
    /// Recomputation, padding and early allocation of a static-shape step.
    pub rectangle: RectangleFeed,
}

/// Recomputation, padding and early allocation of a row under the `rectangular` policy; zero under
/// all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RectangleFeed {
    /// Cached tokens before the new ones to recompute. Their K/V writes are redirected to the dummy
    /// slot.
    pub redirected: u32,
    /// Dummy blocks in front of the row's read.
    pub left_pad_blocks: u32,
    /// Tokens beyond this step for which slots are allocated now.
    pub ahead: u32,
}

/// A scheduled row: a sequence that the policy put into the step under construction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledRow {
    pub(crate) entry: u32,
    pub(crate) seq: SeqId,
    pub(crate) kind: RowKind,
    /// Committed or in-flight tokens fed, without drafts.
    pub(crate) tokens: u32,
    pub(crate) drafts: u32,
    pub(crate) rectangle: RectangleFeed,
    /// Its new slots, rolled back if the row is dropped.
    pub(crate) commitment: Commitment,
}

impl ScheduledRow {
    /// Tokens that the row takes from the step's token budget.
    fn fed(&self) -> u32 {
        self.tokens + self.rectangle.redirected + self.drafts
    }
}

/// The rows of the step under construction, in batch order. Every attempt to schedule a step has a
/// number; a sequence that the attempt has scheduled or deferred carries it.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    rows: Vec<ScheduledRow>,
    tokens: u32,
    attempt: u64,
}

impl Schedule {
    /// Begins an attempt: no row is scheduled.
    pub(crate) fn begin(&mut self) {
        self.attempt += 1;
        self.rows.clear();
        self.tokens = 0;
    }

    /// The scheduled rows.
    pub(crate) fn rows(&self) -> &[ScheduledRow] {
        &self.rows
    }

    /// Tokens that the rows feed, drafts and recomputed ones included.
    pub(crate) fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Adds a row.
    #[inline]
    pub(crate) fn push(&mut self, sequence: &mut Sequence, row: ScheduledRow) {
        self.settle(sequence);
        self.tokens += row.fed();
        self.rows.push(row);
    }

    /// Drops the last row. Its commitment must be rolled back.
    pub(crate) fn pop(&mut self) -> Option<ScheduledRow> {
        self.rows.pop().inspect(|row| self.tokens -= row.fed())
    }

    /// Marks a sequence as scheduled or deferred in this attempt.
    #[inline]
    pub(crate) fn settle(&self, sequence: &mut Sequence) {
        sequence.attempt = self.attempt;
    }

    /// Whether a sequence was scheduled or deferred in this attempt.
    pub(crate) fn is_settled(&self, sequence: &Sequence) -> bool {
        sequence.attempt == self.attempt
    }
}
