//! `ModelDrafter` over a recording draft model: slot copies, foreign token ids and failed passes.
#![allow(clippy::unwrap_used)]

use kvasir_draft::{DraftModelKind, Forward, ModelDrafter, TreeShape};
use kvasir_exec::{BatchRow, KvRows, OutputRow, PoolRow, RowKind, SamplerRow, Step, StepError};
use kvasir_kv::{Cache, ClaimRow, Contiguous, Slot, SlotCopy, Span, StepId, Token};
use kvasir_sample::{Acceptance, Sampling};
use std::sync::{Arc, Mutex};

/// Slots of the target.
const SLOTS: u32 = 64;
/// Levels of the chains.
const DEPTH: u32 = 2;
/// Ids of the draft model.
const VOCAB: usize = 8;

/// What a [`Recorder`] was told.
#[derive(Default)]
struct Record {
    copies: Vec<SlotCopy>,
    /// Tokens of each pass.
    passes: Vec<Vec<Token>>,
    /// Imported rows.
    imported: Vec<(Slot, Vec<u8>)>,
}

/// A draft model that records its calls and predicts one token after every other.
#[derive(Clone)]
struct Recorder {
    record: Arc<Mutex<Record>>,
    /// Number of the pass that fails.
    fails_at: usize,
    logits: Vec<f32>,
}

impl Recorder {
    fn new() -> Self {
        let logits = (0..VOCAB).map(|id| id as f32).collect();
        Self { record: Arc::default(), fails_at: usize::MAX, logits }
    }
}

impl KvRows for Recorder {
    fn slot_bytes(&self) -> usize {
        1
    }

    fn read(&self, slot: Slot, into: &mut [u8]) {
        into.fill(slot as u8);
    }

    fn write(&mut self, slot: Slot, from: &[u8]) {
        self.record.lock().unwrap().imported.push((slot, from.to_vec()));
    }
}

impl Forward for Recorder {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn bind(&mut self, _: PoolRow, _: u32) {}

    fn warm_up(&mut self) {}

    fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError> {
        self.record.lock().unwrap().copies.extend_from_slice(copies);
        Ok(())
    }

    fn forward(&mut self, step: &mut Step, _: &[f32]) -> Result<(), StepError> {
        step.check_sizes(u32::MAX)?;
        let mut record = self.record.lock().unwrap();
        record.copies.extend_from_slice(&step.plan.moves);
        record.passes.push(step.batch.tokens.clone());
        let is_known = |token: &Token| (*token as usize) < VOCAB;
        if record.passes.len() < self.fails_at && step.batch.tokens.iter().all(is_known) {
            Ok(())
        } else {
            Err(StepError::Failed("a pass".into()))
        }
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn states(&self) -> &[f32] {
        &[]
    }
}

fn drafter(model: &Recorder) -> ModelDrafter<Recorder> {
    let kind = DraftModelKind { target_vocab: VOCAB, ..DraftModelKind::default() };
    drafter_for(model, kind)
}

fn drafter_for(model: &Recorder, kind: DraftModelKind) -> ModelDrafter<Recorder> {
    ModelDrafter::new(model.clone(), kind, TreeShape::chain(DEPTH), SLOTS)
}

/// A step that has fed `tokens` of a new sequence and sampled `sampled` behind them.
fn step(cache: &mut Contiguous, row: BatchRow, tokens: &[Token], sampled: Token) -> Step {
    let seq = cache.open().unwrap();
    next_step(cache, BatchRow { seq, ..row }, 1, tokens, sampled)
}

/// The `n`-th step, which has fed `tokens` of the row's sequence.
fn next_step(cache: &mut Contiguous, row: BatchRow, n: u64, tokens: &[Token], sampled: Token) -> Step {
    let mut step = Step::default();
    cache.claim(StepId(n), &[ClaimRow::new(row.seq, tokens.len() as u32)]).unwrap();
    cache.plan(StepId(n), &mut step.plan).unwrap();
    cache.retire(StepId(n)).unwrap();
    step.batch.tokens.extend_from_slice(tokens);
    let sample_from = tokens.len() as u32 - 1;
    step.batch.rows.push(BatchRow { tokens: Span::new(0, tokens.len()), sample_from, ..row });
    step.output.tokens.push(sampled);
    step.output.rows.push(OutputRow { tokens: Span::new(0, 1) });
    step
}

fn propose(drafter: &mut ModelDrafter<Recorder>, step: &mut Step) -> SamplerRow {
    let (tokens, mut rows) = (step.batch.tokens.clone(), vec![SamplerRow::default()]);
    drafter.propose(step, &tokens, &[], &mut rows);
    rows.remove(0)
}

/// A decode row that wants drafts.
fn drafting() -> BatchRow {
    BatchRow { kind: RowKind::Decode, feeds_draft: true, draft_depth: DEPTH, ..BatchRow::default() }
}

fn proposed(step: &Step) -> Vec<Token> {
    step.output.candidates.iter().map(|candidate| candidate.token).collect()
}

#[test]
fn slot_copies_run_in_the_draft_pool_while_drafting_pauses() {
    for draft_depth in [0, DEPTH] {
        let model = Recorder::new();
        let row = BatchRow { feeds_draft: draft_depth > 0, draft_depth, ..drafting() };
        let mut step = step(&mut Contiguous::new(SLOTS), row, &[5], 6);
        let copy = SlotCopy { from: 3, to: 9 };
        step.plan.moves.push(copy);
        propose(&mut drafter(&model), &mut step);
        let record = model.record.lock().unwrap();
        assert_eq!(record.copies, [copy], "once, with drafts of {draft_depth} levels");
        assert_eq!(record.passes.is_empty(), draft_depth == 0);
    }
}

#[test]
fn a_row_tells_whether_the_draft_model_has_run_its_token() {
    let (model, other) = (Recorder::new(), Recorder::new());
    let (mut from, mut to) = (drafter(&model), drafter(&other));
    let mut step = step(&mut Contiguous::new(SLOTS), drafting(), &[2], 3);
    propose(&mut from, &mut step);
    let (run, mut row) = (step.plan.write_slots[0], vec![9; from.slot_bytes()]);
    from.read(run + 1, &mut row);
    assert_eq!(row, [0, run as u8 + 1]);
    from.read(run, &mut row);
    assert_eq!(row, [1, run as u8]);
    to.write(40, &row);
    assert_eq!(other.record.lock().unwrap().imported, [(40, vec![run as u8])]);
    to.read(40, &mut row);
    assert_eq!(row, [1, 40]);
}

#[test]
fn ids_that_only_the_draft_model_has_are_not_proposed() {
    for acceptance in [Acceptance::Coupled, Acceptance::Rejection] {
        for (target_vocab, drafts) in [(VOCAB, [7, 7]), (6, [5, 5])] {
            let kind = DraftModelKind { target_vocab, acceptance, ..DraftModelKind::default() };
            let mut step = step(&mut Contiguous::new(SLOTS), drafting(), &[2], 3);
            propose(&mut drafter_for(&Recorder::new(), kind), &mut step);
            assert_eq!(proposed(&step), drafts);
        }
        let kind = DraftModelKind { target_vocab: 6, acceptance, ..DraftModelKind::default() };
        let mut drafter = drafter_for(&Recorder::new(), kind);
        for seed in 0..20 {
            let sampling = Sampling { temperature: 2.0, seed, ..Sampling::default() };
            let row = BatchRow { sampling, ..drafting() };
            let mut step = step(&mut Contiguous::new(SLOTS), row, &[2], 3);
            propose(&mut drafter, &mut step);
            assert!(proposed(&step).iter().all(|token| *token < 6), "{:?}", proposed(&step));
        }
    }
}

#[test]
fn nothing_is_proposed_behind_an_id_that_the_draft_model_lacks() {
    let foreign = VOCAB as Token + 3;
    for (tokens, sampled, proposals) in [([2, foreign], 3, 1), ([2, 4], foreign, 0)] {
        let row = BatchRow { kind: RowKind::Prefill, ..drafting() };
        let (model, mut step) = (Recorder::new(), step(&mut Contiguous::new(SLOTS), row, &tokens, sampled));
        propose(&mut drafter(&model), &mut step);
        assert_eq!(step.output.draft_error, None);
        assert_eq!(step.output.proposals.len(), proposals);
        assert_eq!(model.record.lock().unwrap().passes[0].len(), 2, "the others run");
    }
}

#[test]
fn a_failed_pass_leaves_the_step_without_proposals() {
    for fails_at in 1..=3 {
        let model = Recorder { fails_at, ..Recorder::new() };
        let mut drafter = drafter(&model);
        let mut step = step(&mut Contiguous::new(SLOTS), drafting(), &[2], 3);
        let mut state = propose(&mut drafter, &mut step);
        assert!(step.output.draft_error.as_ref().is_some_and(|error| error.contains("a pass")));
        assert!(step.output.proposals.is_empty() && state.drafts().tokens.is_empty());
    }
}

#[test]
fn a_sequence_is_drafted_for_if_little_of_its_context_is_missing() {
    // The draft model runs the first 40 tokens, and not the next `missing` ones.
    for (missing, proposes) in [(0, true), (5, true), (6, false)] {
        let (model, mut cache) = (Recorder::new(), Contiguous::new(SLOTS));
        let mut drafter = drafter(&model);
        let row = BatchRow { seq: cache.open().unwrap(), ..drafting() };
        for n in 1..=40 + missing {
            let row = BatchRow { feeds_draft: n <= 40, draft_depth: 0, ..row };
            propose(&mut drafter, &mut next_step(&mut cache, row, n, &[2], 3));
        }
        assert_eq!(model.record.lock().unwrap().passes.len(), 40);
        let mut step = next_step(&mut cache, row, 41 + missing, &[2], 3);
        propose(&mut drafter, &mut step);
        assert_eq!(!proposed(&step).is_empty(), proposes, "{missing} are missing");
        assert_eq!(model.record.lock().unwrap().passes.len() > 40, proposes);
    }
}
