//! Steps of several sequences that compute the logits of every token, for executors of any backend.

use kvasir_exec::{Batch, BatchRow, Drafts, PoolRow, RowKind, Step};
use kvasir_kv::{Cache, ClaimRow, SeqId, Span, StepId, Token};

/// `n` token ids below 500. Each `salt` gives other ones.
pub fn prompt(n: usize, salt: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * 37 + salt * 101 + 11) % 500) as Token).collect()
}

/// What a step computes for one sequence.
#[derive(Clone, Default)]
pub struct RowInput {
    /// The sequence in the cache.
    pub seq: SeqId,
    /// The tokens of its row.
    pub tokens: Vec<Token>,
    /// Leading tokens that are computed again without a write to their slots.
    pub redirected: u32,
    /// Trailing tokens that are drafts of a chain.
    pub drafts: u32,
    /// Parents of the drafts of a token tree; empty for a chain.
    pub parents: Vec<i32>,
}

/// A row without drafts and redirected tokens.
pub fn row_input(seq: SeqId, tokens: &[Token]) -> RowInput {
    RowInput { seq, tokens: tokens.to_vec(), ..RowInput::default() }
}

/// Claims and plans a step that computes the logits of every token.
pub fn step(cache: &mut dyn Cache, id: u64, inputs: &[RowInput]) -> Step {
    let claim = |input: &RowInput| ClaimRow {
        seq: input.seq,
        redirected: input.redirected,
        tokens: input.tokens.len() as u32 - input.redirected,
        drafts: input.drafts,
    };
    let mut step = Step::default();
    cache.claim(StepId(id), &inputs.iter().map(claim).collect::<Vec<_>>()).unwrap();
    cache.plan(StepId(id), &mut step.plan).unwrap();
    step.batch = Batch { step: StepId(id), logits: true, ..Batch::default() };
    for (row, input) in (0..).zip(inputs) {
        let tokens = Span::new(step.batch.tokens.len(), input.tokens.len());
        let parents = Span::new(step.batch.parents.len(), input.parents.len());
        step.batch.tokens.extend(&input.tokens);
        step.batch.parents.extend(&input.parents);
        let drafts = if input.parents.is_empty() {
            Drafts { count: input.drafts, tree: None }
        } else {
            Drafts { count: parents.len, tree: Some(parents) }
        };
        step.batch.rows.push(BatchRow {
            request: row.into(),
            seq: input.seq,
            kind: RowKind::MultiDecode,
            tokens,
            pool_row: PoolRow(row),
            drafts,
            ..BatchRow::default()
        });
    }
    step
}

/// Compares the logits of the last tokens of a sequence with those of all of its tokens.
pub fn check_last_rows(rows: &[Vec<f32>], expected: &[Vec<f32>], context: &str) {
    let first = expected.len() - rows.len();
    for (at, row) in rows.iter().enumerate() {
        assert!(*row == expected[first + at], "{context}: position {}", first + at);
    }
}
