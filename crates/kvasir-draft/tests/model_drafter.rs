//! `ModelDrafter` over a recording draft model: slot copies, foreign token ids and failed passes.
#![allow(clippy::unwrap_used)]

use kvasir_draft::{DraftModelKind, Forward, ModelDrafter, TreeShape};
use kvasir_exec::{BatchRow, OutputRow, PoolRow, RowKind, Step, StepError};
use kvasir_kv::{Cache, ClaimRow, Contiguous, SlotCopy, Span, StepId, Token};
use std::sync::{Arc, Mutex};

/// Slots of the target.
const SLOTS: u32 = 64;
/// Levels of the chains.
const DEPTH: u32 = 2;

/// What a [`Recorder`] was told.
#[derive(Default)]
struct Record {
    copies: Vec<SlotCopy>,
    /// Tokens of each pass.
    passes: Vec<Vec<Token>>,
}

/// A draft model that records its calls and predicts one token after every other.
#[derive(Clone)]
struct Recorder {
    record: Arc<Mutex<Record>>,
    logits: Vec<f32>,
}

impl Recorder {
    fn new() -> Self {
        let mut logits = vec![0.0; 8];
        logits[3] = 1.0;
        Self { record: Arc::default(), logits }
    }
}

impl Forward for Recorder {
    fn bind(&mut self, _: PoolRow, _: u32) {}

    fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError> {
        self.record.lock().unwrap().copies.extend_from_slice(copies);
        Ok(())
    }

    fn forward(&mut self, step: &mut Step, _: &[f32]) -> Result<(), StepError> {
        step.check_sizes(u32::MAX)?;
        let mut record = self.record.lock().unwrap();
        record.copies.extend_from_slice(&step.plan.moves);
        record.passes.push(step.batch.tokens.clone());
        Ok(())
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn states(&self) -> &[f32] {
        &[]
    }
}

fn drafter(model: &Recorder) -> ModelDrafter<Recorder> {
    ModelDrafter::new(model.clone(), DraftModelKind::default(), TreeShape::chain(DEPTH), SLOTS)
}

/// A step that has fed `tokens` of one sequence and sampled `sampled` behind them.
fn step(cache: &mut Contiguous, row: BatchRow, tokens: &[Token], sampled: Token) -> Step {
    let seq = cache.open().unwrap();
    let mut step = Step::default();
    cache.claim(StepId(1), &[ClaimRow::new(seq, tokens.len() as u32)]).unwrap();
    cache.plan(StepId(1), &mut step.plan).unwrap();
    step.batch.tokens.extend_from_slice(tokens);
    let sample_from = tokens.len() as u32 - 1;
    step.batch.rows.push(BatchRow { seq, tokens: Span::new(0, tokens.len()), sample_from, ..row });
    step.output.tokens.push(sampled);
    step.output.rows.push(OutputRow { tokens: Span::new(0, 1) });
    step
}

/// The token after each of a step's tokens.
fn next(step: &Step) -> Vec<Token> {
    [&step.batch.tokens[1..], &step.output.tokens[..]].concat()
}

fn propose(drafter: &mut ModelDrafter<Recorder>, step: &mut Step) -> Result<(), StepError> {
    let (tokens, next) = (step.batch.tokens.clone(), next(step));
    drafter.propose(step, &tokens, &next, &[])
}

#[test]
fn slot_copies_run_in_the_draft_pool_while_drafting_pauses() {
    for draft_depth in [0, DEPTH] {
        let model = Recorder::new();
        let row = BatchRow { kind: RowKind::Decode, draft_depth, ..BatchRow::default() };
        let mut step = step(&mut Contiguous::new(SLOTS), row, &[5], 6);
        let copy = SlotCopy { from: 3, to: 9 };
        step.plan.moves.push(copy);
        propose(&mut drafter(&model), &mut step).unwrap();
        let record = model.record.lock().unwrap();
        assert_eq!(record.copies, [copy], "once, with drafts of {draft_depth} levels");
        assert_eq!(record.passes.is_empty(), draft_depth == 0);
    }
}
