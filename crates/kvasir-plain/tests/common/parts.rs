//! Test helper: steps of several sequences, in which every token is sampled.

use super::{Stream, limits, lower};
use kvasir_exec::{Batch, BatchRow, Drafts, PoolRow, RowKind, Step};
use kvasir_kv::{Cache, ClaimRow, SeqId, Span, StepId, Token};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_sample::Sampling;

pub(crate) fn prompt(n: usize, salt: usize) -> Vec<Token> {
    (0..n).map(|i| ((i * 37 + salt * 101 + 11) % 500) as Token).collect()
}

/// One sequence's part of a step.
#[derive(Clone, Default)]
pub(crate) struct Part {
    pub(crate) seq: u64,
    pub(crate) tokens: Vec<Token>,
    pub(crate) redirected: u32,
    pub(crate) drafts: u32,
    pub(crate) parents: Vec<i32>,
}

pub(crate) fn part(seq: SeqId, tokens: &[Token]) -> Part {
    Part { seq: seq.0, tokens: tokens.to_vec(), ..Part::default() }
}

/// Claims and plans a step in which every token is sampled.
pub(crate) fn step(cache: &mut dyn Cache, id: u64, parts: &[Part]) -> Step {
    let claim = |p: &Part| ClaimRow {
        seq: SeqId(p.seq),
        redirected: p.redirected,
        tokens: p.tokens.len() as u32 - p.redirected,
        drafts: if p.parents.is_empty() { p.drafts } else { 0 },
    };
    let claims: Vec<ClaimRow> = parts.iter().map(claim).collect();
    let mut step = Step::default();
    cache.claim(StepId(id), &claims).unwrap();
    cache.plan(StepId(id), &mut step.plan).unwrap();
    lower(&mut step);
    step.batch = Batch { step: StepId(id), logits: true, ..Batch::default() };
    for (row, p) in parts.iter().enumerate() {
        let tokens = Span::new(step.batch.tokens.len(), p.tokens.len());
        step.batch.tokens.extend(&p.tokens);
        let tree = (!p.parents.is_empty()).then(|| Span::new(step.batch.parents.len(), p.parents.len()));
        step.batch.parents.extend(&p.parents);
        step.batch.rows.push(BatchRow {
            request: row as u64,
            seq: SeqId(p.seq),
            kind: RowKind::MultiDecode,
            tokens,
            cached: 0,
            context_len: 0,
            last_block_tokens: 0,
            sample_from: 0,
            pool_row: PoolRow(row as u32),
            scored: Span::default(),
            drafts: Drafts { count: p.drafts, tree },
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
    parts: &[Part],
) -> Vec<Vec<f32>> {
    let step = step(cache, id, parts);
    let logits = executor.pass(&step, None, &[]).unwrap().logits;
    cache.retire(StepId(id)).unwrap();
    logits.chunks(executor.program().vocab).map(<[f32]>::to_vec).collect()
}

/// The reference: the same tokens alone on a contiguous cache, in one step.
pub(crate) fn alone(model: &PlainModel, tokens: &[Token]) -> Vec<Vec<f32>> {
    let mut stream = Stream::new(PlainExecutor::new(model, limits()), tokens, tokens.len());
    let logits = stream.pass(tokens, 0, None, &[]).logits;
    logits.chunks(model.program().vocab).map(<[f32]>::to_vec).collect()
}
