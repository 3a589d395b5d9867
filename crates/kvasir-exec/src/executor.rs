//! The [`Executor`] trait: asynchronous submission of steps to a backend.
//!
//! Life of a step: the engine fills a [`Step`], `submit` moves it into the executor, and `wait`
//! returns it with its output filled in. Up to [`Abilities::depth`] steps are in flight. They run
//! and return in submission order.
//!
//! The executor must not take scheduling decisions. A step that it refuses in `submit` comes back
//! unchanged in [`Refused`]. [`Ran`] is the pending handle of an executor that runs each step
//! inside `submit`.

use crate::batch::{Batch, BatchRow, PoolRow, RowKind};
use crate::kv_rows::{KvAccess, KvLayout, NoKvAccess};
use crate::output::Output;
use kvasir_kv::{GroupId, Lowering, Plan, PlanKind, PlanRow, Position, Section, Slot, Token};
use kvasir_sample::{Constrained, MirostatState, SamplerChain, Sampling, accept};
use std::{fmt, ops::Range, sync::Arc};

/// One step: batch, plan and output.
///
/// It moves into the executor and back as one box, so that the steady state copies and allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What runs.
    pub batch: Batch,
    /// The KV slots it writes, and the entries it attends to.
    pub plan: Plan,
    /// Sampled tokens and logits, filled in by the executor.
    pub output: Output,
}

impl Step {
    /// Rewrites the plan into explicit masks and returns the original plan, unless an executor of
    /// these abilities accepts the kinds of all sections.
    ///
    /// # Errors
    /// The executor does not accept explicit masks either. The step is unchanged.
    pub fn lower(
        &mut self,
        abilities: &Abilities,
        lowering: &mut Lowering,
    ) -> Result<Option<Box<Plan>>, StepError> {
        if self.plan.sections().all(|section| abilities.plans.contains(&section.kind)) {
            return Ok(None);
        }
        if !abilities.plans.contains(&PlanKind::Explicit) {
            return Err(StepError::Failed("the executor accepts no explicit masks".into()));
        }
        let mut original = Box::<Plan>::default();
        std::mem::swap(&mut self.plan, &mut original);
        lowering.lower(&original, &mut self.plan);
        Ok(Some(original))
    }

    /// Appends the accepted drafts of a row: nodes of its chain or tree, whose numbers start at 1.
    /// Empty for a row without drafts, and before the step has run.
    pub fn accepted(&self, row: usize, into: &mut Vec<u32>) {
        let (Some(fed), Some(output)) = (self.batch.rows.get(row), self.output.rows.get(row)) else { return };
        let tokens = self.batch.tokens.get(fed.tokens.range()).unwrap_or(&[]);
        let drafts = &tokens[tokens.len().saturating_sub(fed.drafts.count as usize)..];
        let sampled = self.output.tokens.get(output.tokens.range()).unwrap_or(&[]);
        match fed.drafts.tree.and_then(|tree| self.batch.parents.get(tree.range())) {
            None => accept::chain(drafts, sampled, into),
            Some(parents) => accept::tree(drafts, parents, sampled, into),
        }
    }

    /// Checks that the batch has at most `most` tokens and that the plan describes the same rows:
    /// what an executor may rely on before it indexes one by the other. Linear in the rows.
    pub fn check_sizes(&self, most: u32) -> Result<(), StepError> {
        let (batch, plan, n) = (&self.batch, &self.plan, self.batch.tokens.len());
        let mut spans = batch.rows.iter().map(|row| row.tokens);
        let end = spans.try_fold(0, |at, span| (span.start == at).then(|| at.saturating_add(span.len)));
        let same = batch.rows.len() == plan.rows.len()
            && end == Some(n as u32)
            && batch.rows.iter().zip(&plan.rows).all(|(b, p)| b.tokens == p.queries && b.seq == p.seq);
        if n > most as usize || !same {
            return Err(StepError::Failed(format!("batch of {n} tokens and plan do not belong together")));
        }
        let decodes = |row: &BatchRow| row.tokens.len == 1 && row.sample_from == 0 && row.drafts.count == 0;
        if let Some(row) = batch.rows.iter().find(|row| row.kind == RowKind::Decode && !decodes(row)) {
            return Err(StepError::Failed(format!("request {} is no plain decode", row.request)));
        }
        let reads_nothing = |(row, planned): (&BatchRow, &PlanRow)| match row.kind {
            RowKind::Dummy => planned.segments.len == 0 && !row.samples() && row.scored.len == 0,
            _ => !batch.is_dummy(),
        };
        if !batch.rows.iter().zip(&plan.rows).all(reads_nothing) {
            return Err(StepError::Failed("a dummy row reads or samples, or a dummy step has others".into()));
        }
        let planned = plan.positions.len();
        if planned != n || plan.write_slots.len() != n {
            return Err(StepError::Failed(format!("plan of {planned} tokens for a batch of {n}")));
        }
        let has_same_rows = |section: &Section| {
            section
                .rows
                .iter()
                .map(|row| (row.seq, row.queries))
                .eq(plan.rows.iter().map(|row| (row.seq, row.queries)))
        };
        if plan.windows.iter().any(|section| section.write_slots.len() != n || !has_same_rows(section)) {
            return Err(StepError::Failed(
                "the window sections of the plan have other rows than its full section".into(),
            ));
        }
        if !plan.states.is_empty() && plan.states.rows.len() != plan.rows.len() {
            let (states, rows) = (plan.states.rows.len(), plan.rows.len());
            return Err(StepError::Failed(format!("plan of {states} state rows for {rows} rows")));
        }
        Ok(())
    }

    /// Checks that the plan has a section for each of an executor's `groups` window groups. A dummy
    /// step may have none. An executor without window groups ignores the window sections, because
    /// the section of the full group has the same rows.
    pub fn check_window_sections(&self, groups: usize) -> Result<(), StepError> {
        let sections = self.plan.windows.len();
        if groups == 0 || sections == groups || (sections == 0 && self.batch.is_dummy()) {
            return Ok(());
        }
        let why = format!("the plan has {sections} window sections for {groups} window groups");
        Err(StepError::Failed(why))
    }
}

/// The capabilities of an executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Kinds of plans that it accepts. All others are rewritten into [`PlanKind::Explicit`], or
    /// refused if it lacks that, too.
    pub plans: &'static [PlanKind],
    /// Steps that may be in flight: submitted but not waited for.
    pub depth: u32,
    /// Maximum tokens per step.
    pub max_tokens: u32,
    /// Size of the token pool, in rows.
    pub pool_rows: u32,
    /// Batch sizes that it runs best at, in rising order: a decode step is padded to the next of
    /// them with dummy rows. Empty if all sizes are alike.
    pub batch_sizes: Vec<u32>,
    /// Whether it computes rectangles: a step of the `rectangular` policy then comes with its dummy
    /// blocks and dummy tokens. Other executors get rows as long as they are.
    pub rectangles: bool,
    /// Whether it has a pool of recurrent states and reads the plan's state section.
    pub states: bool,
    /// Whether it can have a KV pool per window group, and reads the plan's window sections if it
    /// has.
    pub windows: bool,
}

impl Abilities {
    /// An executor that accepts every kind of plan, reads the sections of all layer groups and has
    /// no static shapes.
    pub const fn all(depth: u32, max_tokens: u32, pool_rows: u32) -> Self {
        let plans = &[PlanKind::Contiguous, PlanKind::Ragged, PlanKind::Explicit];
        let batch_sizes = Vec::new();
        let (rectangles, states, windows) = (false, true, true);
        Self { plans, depth, max_tokens, pool_rows, batch_sizes, rectangles, states, windows }
    }
}

/// What the executor must know of a sequence before its first step; see [`Executor::bind`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceSpec {
    /// Sampling parameters.
    pub sampling: Sampling,
    /// llama.cpp's samplers and their order, if the request names any.
    pub chain: Option<Arc<SamplerChain>>,
    /// Mirostat's state, which is kept across `bind` calls.
    pub mirostat: Option<MirostatState>,
    /// Logit bias: added to the logits of these ids.
    pub bias: Vec<(Token, f32)>,
    /// Prompt ids, for the repetition penalty and prompt log-probabilities.
    pub prompt: Vec<Token>,
    /// Output ids that already exist (the sequence resumes after a preemption).
    pub output: Vec<Token>,
    /// Ids that are masked out until `min_tokens` outputs exist, such as EOS.
    pub suppressed_until_min: Vec<Token>,
    /// Outputs that must exist before `suppressed_until_min` is lifted.
    pub min_tokens: u32,
    /// Constrained decoding: the token mask at every position. Where the mask allows no token, the
    /// executor samples none, which ends that one sequence.
    pub constraint: Constrained,
    /// Maximum length that the sequence may reach: prompt plus output limit, in tokens.
    ///
    /// LongRoPE models choose the rotary frequencies by it for all positions, so it must be the
    /// same whenever the sequence is bound.
    pub final_len: u32,
    /// Position of the first token of token type 1 (the second text of a pair); 0 if there is none.
    pub second_text_start: u32,
    /// Positions before all tokens that it will be fed that belong to no token of it: a range was
    /// cut out of its session. Position `p` is that of its token `p - skipped`.
    pub skipped: u32,
    /// Number of tokens that context shifts have dropped after the first `kept`. All later tokens
    /// have positions lower by this number.
    pub dropped: u32,
    /// Leading tokens of the prompt, at most all, that were not dropped.
    pub kept: u32,
}

impl SequenceSpec {
    /// The position that a token would have if nothing had been dropped.
    pub(crate) fn undropped(&self, position: Position) -> Position {
        if position < self.kept { position } else { position + self.dropped }
    }

    /// Which token of the sequence has a position.
    pub(crate) fn index_of(&self, position: Position) -> usize {
        self.undropped(position).saturating_sub(self.skipped) as usize
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// The device reported an error. The sequences of this step have failed; others continue.
    Failed(String),
    /// An allocation for the step failed.
    OutOfMemory(String),
    /// The executor is gone for good.
    Lost(String),
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(f, "step failed: {why}"),
            Self::OutOfMemory(why) => write!(f, "out of memory: {why}"),
            Self::Lost(why) => write!(f, "device lost: {why}"),
        }
    }
}

impl std::error::Error for StepError {}

/// A step that `submit` rejected, with the reason.
#[derive(Debug)]
pub struct Refused {
    /// The step, unchanged.
    pub step: Box<Step>,
    /// Why.
    pub error: StepError,
}

/// A backend's compiled form of one program, with its weights and KV pool.
///
/// Steps run in submission order. Each step sees the K and V and the sampled tokens of all earlier
/// ones.
pub trait Executor {
    /// A ticket for a submitted step.
    type Pending;

    /// The capabilities of this executor; constant over its life.
    fn abilities(&self) -> Abilities;
    /// Assigns a token-pool row to a sequence and resets its sampler state.
    ///
    /// The row must be below [`Abilities::pool_rows`], and no step in flight may name it. Every
    /// sequence is bound before its first step, and again after a preemption, with its output.
    fn bind(&mut self, row: PoolRow, spec: SequenceSpec);
    /// Submits a step and returns without waiting for the device.
    ///
    /// The step must respect [`Executor::abilities`], its plan must be fresh, its pool rows bound,
    /// and fewer than [`Abilities::depth`] steps may be in flight. A refused step has run nothing
    /// and comes back unchanged; earlier steps go on.
    fn submit(&mut self, step: Box<Step>) -> Result<Self::Pending, Refused>;
    /// Waits for the oldest submitted step, whose handle `pending` must be, and returns it. Blocks
    /// until the device has run it.
    ///
    /// On success the output has one entry per row of the batch. On failure it says nothing, and
    /// the K and V that the step should have written are unspecified; later steps go on.
    fn wait(&mut self, pending: Self::Pending) -> (Box<Step>, Result<(), StepError>);
    /// Returns the memory of free slots of a layer group to the system: all pages that hold nothing
    /// else. No step in flight may name one of the slots, and later steps must write a slot before
    /// they read it. The default keeps the memory.
    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        let _ = (group, slots);
    }
    /// Layout of the rows of its slots; constant. The default gives no access to them.
    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        Err(NoKvAccess("the backend gives no access to its KV pool"))
    }
    /// Runs `access` after the steps that were waited for, and before all that are submitted later.
    /// Steps in flight may run before or after it, so they must neither write slots that it reads
    /// nor use slots that it writes. Drops it if there is no [layout](Executor::kv_layout).
    fn access_kv(&mut self, access: KvAccess) {
        drop(access);
    }
}

/// A step that has already run when `submit` returns; `wait` only unpacks it.
///
/// For backends that run on the calling CPU.
pub struct Ran {
    step: Box<Step>,
    result: Result<(), StepError>,
}

impl Ran {
    /// Runs `run` on the step now, for as long as it takes, and stores its result.
    pub fn now(mut step: Box<Step>, run: impl FnOnce(&mut Step) -> Result<(), StepError>) -> Self {
        let result = run(&mut step);
        Self { step, result }
    }

    /// The step and its result.
    pub fn into_parts(self) -> (Box<Step>, Result<(), StepError>) {
        (self.step, self.result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Drafts, RowKind};
    use kvasir_kv::{Cache, CacheError, ClaimRow, Contiguous, Span, StepId};

    fn planned() -> Result<Step, CacheError> {
        let mut cache = Contiguous::new(8);
        let (seq, mut step) = (cache.open()?, Step::default());
        cache.claim(StepId(1), &[ClaimRow::new(seq, 3)])?;
        cache.plan(StepId(1), &mut step.plan)?;
        step.batch.tokens.extend([3, 4, 5]);
        step.batch.rows.push(BatchRow { seq, tokens: Span::new(0, 3), ..BatchRow::default() });
        Ok(step)
    }

    #[test]
    fn plans_are_lowered_only_for_executors_that_need_it() -> Result<(), CacheError> {
        let (mut step, mut lowering) = (planned()?, Lowering::default());
        let plan = step.plan.clone();
        assert_eq!(step.lower(&Abilities::all(1, 8, 1), &mut lowering), Ok(None));
        let none = Abilities { plans: &[PlanKind::Ragged], ..Abilities::all(1, 8, 1) };
        assert!(matches!(step.lower(&none, &mut lowering), Err(StepError::Failed(_))));
        assert_eq!(step.plan, plan);
        let explicit = Abilities { plans: &[PlanKind::Explicit], ..none };
        assert_eq!(step.lower(&explicit, &mut lowering), Ok(Some(Box::new(plan))));
        assert_eq!(step.plan.kind, PlanKind::Explicit);
        Ok(())
    }

    #[test]
    fn a_plain_decode_has_one_token_and_no_drafts() -> Result<(), CacheError> {
        let mut step = planned()?;
        assert_eq!(step.check_sizes(8), Ok(()));
        step.batch.rows[0].kind = RowKind::Decode;
        assert!(step.check_sizes(8).is_err());
        step.batch.rows[0].drafts = Drafts { count: 2, tree: None };
        step.batch.rows[0].kind = RowKind::MultiDecode;
        assert_eq!(step.check_sizes(8), Ok(()));
        Ok(())
    }
}
