use crate::{Batch, Output, PoolRow};
use kvasir_kv::{Plan, Token};
use kvasir_sample::{Constrained, Sampling};
use std::fmt;

/// One step on its way: it is handed to the executor whole and comes back whole, so that nothing is copied and no
/// memory is taken in the steady state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What runs.
    pub batch: Batch,
    /// Where it writes and what it reads.
    pub plan: Plan,
    /// What it yielded.
    pub output: Output,
}

impl Step {
    /// Refuses a batch of more than so many tokens, and a plan for another batch.
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
        let planned = plan.positions.len();
        if planned != n || plan.write_slots.len() != n {
            return Err(StepError::Failed(format!("plan of {planned} tokens for a batch of {n}")));
        }
        Ok(())
    }
}

/// What an executor can run. The engine lowers or refuses the rest, by name and at start-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Takes plans of kind contiguous.
    pub contiguous: bool,
    /// Takes plans of kind ragged.
    pub ragged: bool,
    /// Takes plans with explicit masks.
    pub explicit: bool,
    /// Takes prefill and decode rows in one step.
    pub mixed: bool,
    /// Steps that may be submitted before the first is waited for.
    pub depth: u32,
    /// Tokens one step may hold.
    pub max_tokens: u32,
    /// Token-pool rows.
    pub pool_rows: u32,
}

impl Abilities {
    /// Takes plans of every kind, in mixed steps.
    pub const fn all(depth: u32, max_tokens: u32, pool_rows: u32) -> Self {
        Self { contiguous: true, ragged: true, explicit: true, mixed: true, depth, max_tokens, pool_rows }
    }
}

/// What the executor must know of a sequence before its first step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceSpec {
    /// How to sample.
    pub sampling: Sampling,
    /// Added to the logits of single ids.
    pub bias: Vec<(Token, f32)>,
    /// Prompt ids, for penalties that look at them.
    pub prompt: Vec<Token>,
    /// Output ids that exist already (after a preemption).
    pub output: Vec<Token>,
    /// Ids that may not be sampled before `min_tokens` outputs exist.
    pub suppressed_until_min: Vec<Token>,
    /// Outputs that must exist before those ids may be sampled.
    pub min_tokens: u32,
    /// What alone may be sampled. An executor draws nothing where nothing may be, which ends that one sequence.
    pub constraint: Constrained,
    /// Tokens that the sequence may ever hold, prompt and limit together. Some models turn all of a long sequence's rows by
    /// other angles, so this must be the same at every binding of one sequence.
    pub final_len: u32,
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepError {
    /// The device reported an error; the sequences of the step have failed, others go on.
    Failed(String),
    /// Memory could not be had for it.
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

/// A step that was not taken, with the reason.
#[derive(Debug)]
pub struct Refused {
    /// The step, unchanged.
    pub step: Box<Step>,
    /// Why.
    pub error: StepError,
}

/// A backend's compiled form of one program with its weights and pools.
///
/// Steps run in the order of submission, and each sees the K and V, and the sampled tokens, of all before it.
pub trait Executor {
    /// A submitted step.
    type Pending;

    /// What it can run.
    fn abilities(&self) -> Abilities;
    /// Gives a token-pool row to a sequence.
    fn bind(&mut self, row: PoolRow, spec: SequenceSpec);
    /// Hands a step over; returns without waiting for the device.
    fn submit(&mut self, step: Box<Step>) -> Result<Self::Pending, Refused>;
    /// Waits for the oldest submitted step and gives it back, its output filled in unless it failed.
    fn wait(&mut self, pending: Self::Pending) -> (Box<Step>, Result<(), StepError>);
}
