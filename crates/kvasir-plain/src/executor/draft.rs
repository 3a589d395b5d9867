//! The draft model behind a target: an executor whose KV pool mirrors the target's, slot for slot.

use crate::executor::{Limits, PlainExecutor};
use crate::model::{Pass, PlainModel};
use kvasir_draft::{DraftModelKind, Forward, ModelDrafter, TreeShape};
use kvasir_exec::{Executor, KvRows, PoolRow, SequenceSpec, Step, StepError};
use kvasir_kv::{GroupId, Lowering, Slot, SlotCopy};
use kvasir_program::Tap;
use std::ops::Range;
use std::sync::Arc;

/// A draft model, ready to run behind a target.
pub struct Drafting {
    pub(crate) drafter: ModelDrafter<DraftProgram>,
    /// What it takes of the target; `None` for a model of its own.
    pub(crate) from: Option<Tap>,
}

/// Which program of a checkpoint drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// Its target: a model of its own, or a draft head.
    Target,
    /// Its first multi-token-prediction (MTP) layer.
    Prediction,
}

pub(crate) struct DraftProgram {
    pub(super) executor: PlainExecutor,
    state: Option<Tap>,
    lowering: Lowering,
    pass: Pass,
}

impl Drafting {
    /// A draft model for a target of these limits; `None` if the checkpoint has no such program.
    /// `from` is the target's tap that it takes as hidden states, and `state` its own tap that
    /// takes the place of that while drafting; both are none for a model of its own.
    pub fn new(
        model: &PlainModel,
        source: DraftSource,
        kind: DraftModelKind,
        shape: TreeShape,
        limits: Limits,
        (from, state): (Option<Tap>, Option<Tap>),
    ) -> Option<Self> {
        let compiled = match source {
            DraftSource::Target => &model.target,
            DraftSource::Prediction => model.predictions.first()?,
        };
        let scratch = ModelDrafter::<DraftProgram>::scratch_slots(shape, limits.rows);
        let own = Limits {
            slots: limits.slots.saturating_add(scratch),
            tokens: limits.tokens.max(limits.rows.saturating_mul(shape.top_k)),
            // The draft model has no recurrent layers; its plans have no state rows.
            states: None,
            ..limits
        };
        let executor = PlainExecutor::of(Arc::clone(compiled), own);
        let program = DraftProgram { executor, state, lowering: Lowering::default(), pass: Pass::default() };
        let drafter = ModelDrafter::new(program, kind, shape, limits.slots);
        Some(Self { drafter, from })
    }
}

impl KvRows for DraftProgram {
    fn slot_bytes(&self) -> usize {
        self.executor.slot_bytes()
    }

    fn read(&self, slot: Slot, into: &mut [u8]) {
        self.executor.read(slot, into);
    }

    fn write(&mut self, slot: Slot, from: &[u8]) {
        self.executor.write(slot, from);
    }
}

impl Forward for DraftProgram {
    fn vocab(&self) -> usize {
        self.executor.program().vocab
    }

    fn bind(&mut self, row: PoolRow, final_len: u32) {
        self.executor.bind(row, SequenceSpec { final_len, ..SequenceSpec::default() });
    }

    fn warm_up(&mut self) {}

    fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError> {
        self.executor.copy_slots(copies)
    }

    fn release(&mut self, slots: &[Range<Slot>]) {
        self.executor.release(GroupId::FULL, slots);
    }

    fn forward(&mut self, step: &mut Step, hidden: &[f32]) -> Result<(), StepError> {
        let original = step.lower(&self.executor.abilities(), &mut self.lowering)?;
        let hidden = self.executor.program().takes_hidden().then_some(hidden);
        let pass = self.executor.pass(step, hidden, self.state.as_slice());
        if let Some(original) = original {
            step.plan = *original;
        }
        self.pass = pass?;
        Ok(())
    }

    fn logits(&self) -> &[f32] {
        &self.pass.logits
    }

    fn states(&self) -> &[f32] {
        self.pass.taps.first().map_or(&[], |(_, rows)| rows)
    }
}
