//! Test helper: steps of several sequences that compute the logits of every token.

use super::{Stream, limits, lower};
use kvasir_exec::{Batch, BatchRow, Drafts, PoolRow, RowKind, Step};
use kvasir_kv::{Cache, ClaimRow, SeqId, Span, StepId, Token};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_sample::Sampling;

pub(crate) fn prompt(n: usize, salt: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * 37 + salt * 101 + 11) % 500) as Token).collect()
}

/// What a step computes for one sequence.
#[derive(Clone, Default)]
pub(crate) struct RowInput {
    pub(crate) seq: u64,
    pub(crate) tokens: Vec<Token>,
    /// Leading tokens that are computed again without a write to their slots.
    pub(crate) redirected: u32,
    /// Trailing tokens that are drafts.
    pub(crate) drafts: u32,
    /// Parents of the nodes of a draft tree; empty for a chain.
    pub(crate) parents: Vec<i32>,
}

pub(crate) fn row_input(seq: SeqId, tokens: &[Token]) -> RowInput {
    RowInput { seq: seq.0, tokens: tokens.to_vec(), ..RowInput::default() }
}

/// Claims and plans a step that computes the logits of every token.
pub(crate) fn step(cache: &mut dyn Cache, id: u64, inputs: &[RowInput]) -> Step {
    let claim = |input: &RowInput| ClaimRow {
        seq: SeqId(input.seq),
        redirected: input.redirected,
        tokens: input.tokens.len() as u32 - input.redirected,
        drafts: if input.parents.is_empty() { input.drafts } else { 0 },
    };
    let claims: Vec<ClaimRow> = inputs.iter().map(claim).collect();
    let mut step = Step::default();
    cache.claim(StepId(id), &claims).unwrap();
    cache.plan(StepId(id), &mut step.plan).unwrap();
    lower(&mut step);
    step.batch = Batch { step: StepId(id), logits: true, ..Batch::default() };
    for (row, input) in inputs.iter().enumerate() {
        let tokens = Span::new(step.batch.tokens.len(), input.tokens.len());
        step.batch.tokens.extend(&input.tokens);
        let tree =
            (!input.parents.is_empty()).then(|| Span::new(step.batch.parents.len(), input.parents.len()));
        step.batch.parents.extend(&input.parents);
        step.batch.rows.push(BatchRow {
            request: row as u64,
            seq: SeqId(input.seq),
            kind: RowKind::MultiDecode,
            tokens,
            cached: 0,
            context_len: 0,
            last_block_tokens: 0,
            sample_from: 0,
            pool_row: PoolRow(row as u32),
            scored: Span::default(),
            drafts: Drafts { count: input.drafts, tree },
            feeds_draft: false,
            draft_depth: 0,
            sampling: Sampling::default(),
        });
    }
    step
}

/// Runs a step and returns each token's logits.
pub(crate) fn run(
    executor: &mut PlainExecutor,
    cache: &mut dyn Cache,
    id: u64,
    inputs: &[RowInput],
) -> Vec<Vec<f32>> {
    let step = step(cache, id, inputs);
    let logits = executor.pass(&step, None, &[]).unwrap().logits;
    cache.retire(StepId(id)).unwrap();
    logits.chunks(executor.program().vocab).map(<[f32]>::to_vec).collect()
}

/// Logits of the tokens as the only sequence of a contiguous cache, in one step.
pub(crate) fn reference_logits(model: &PlainModel, tokens: &[Token]) -> Vec<Vec<f32>> {
    let mut stream = Stream::new(PlainExecutor::new(model, limits()), tokens, tokens.len());
    let logits = stream.pass(tokens, 0, None, &[]).logits;
    logits.chunks(model.program().vocab).map(<[f32]>::to_vec).collect()
}
