//! The draft model behind a target: an executor whose KV pool mirrors the target's, slot for slot.

use crate::exec::executor::{CpuExecutor, Limits};
use crate::exec::model::CpuModel;
use kvasir_draft::{DraftModelKind, Forward, ModelDrafter, TreeShape};
use kvasir_exec::{Executor, KvRows, PoolRow, SequenceSpec, Step, StepError};
use kvasir_kv::{GroupId, Slot, SlotCopy};
use kvasir_program::Tap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A draft model, ready to run behind a target.
pub struct Drafting {
    pub(crate) drafter: ModelDrafter<DraftProgram>,
    /// What it takes of the target; `None` for a model of its own.
    from: Option<Tap>,
}

/// A draft program with its executor.
pub(crate) struct DraftProgram {
    executor: CpuExecutor,
    /// What it continues from while drafting.
    state: Option<Tap>,
}

impl Drafting {
    /// A draft model for a target of these limits. `from` is the target's tap that it takes as
    /// hidden states, and `state` its own tap that takes the place of that while drafting; both are
    /// none for a model of its own. The models must [keep](CpuModel::keeping) them.
    pub fn new(
        model: Arc<CpuModel>,
        kind: DraftModelKind,
        shape: TreeShape,
        limits: Limits,
        (from, state): (Option<Tap>, Option<Tap>),
    ) -> io::Result<Self> {
        let scratch = ModelDrafter::<DraftProgram>::scratch_slots(shape, limits.rows);
        let own = Limits {
            slots: limits.slots.saturating_add(scratch),
            tokens: limits.tokens.max(limits.rows.saturating_mul(shape.top_k)),
            ring: None,
            ..limits
        };
        let program = DraftProgram { executor: CpuExecutor::new(model, own)?, state };
        Ok(Self { drafter: ModelDrafter::new(program, kind, shape, limits.slots), from })
    }

    /// Storage type and layers of its pool.
    pub(crate) fn kv_format(&self) -> String {
        self.drafter.model().executor.kv_format()
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

    fn warm_up(&mut self) {
        self.executor.model.pack_for_warm_up();
    }

    fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError> {
        self.executor.copy_slots(copies)
    }

    fn release(&mut self, slots: &[Range<Slot>]) {
        self.executor.release(GroupId::FULL, slots);
    }

    fn forward(&mut self, step: &mut Step, hidden: &[f32]) -> Result<(), StepError> {
        self.executor.forward(step, hidden)
    }

    fn logits(&self) -> &[f32] {
        self.executor.logits()
    }

    fn states(&self) -> &[f32] {
        self.state.and_then(|tap| self.executor.tap(tap)).unwrap_or(&[])
    }
}

impl CpuExecutor {
    /// Lets the draft model continue the step that has just run.
    pub(crate) fn draft(&mut self, step: &mut Step) {
        let Some(mut drafting) = self.drafting.take() else { return };
        let mut rows = std::mem::take(&mut self.rows);
        let hidden = drafting.from.and_then(|tap| self.tap(tap)).unwrap_or(&[]);
        drafting.drafter.propose(step, &self.tokens, hidden, &mut rows);
        self.rows = rows;
        self.drafting = Some(drafting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::kv_pool::kv_type::KvType;
    use crate::threads::pool::ThreadPool;
    use crate::weights::precision::Precision;
    use kvasir_exec::Padding;
    use kvasir_formats::Checkpoint;
    use kvasir_program::Model;

    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_dummy_step_packs_the_weights_of_the_draft_model() {
        let checkpoint = Arc::new(Checkpoint::open(&kvasir_testkit::paths::model("qwen3_bf16")).unwrap());
        let program = Model::build(&checkpoint.source()).unwrap().target;
        let threads = Arc::new(ThreadPool::new(1));
        let load = || {
            let (source, threads) = (Arc::clone(&checkpoint), Arc::clone(&threads));
            Arc::new(CpuModel::load(&program, source, Precision::Auto, threads).unwrap())
        };
        let limits = Limits { slots: 65, tokens: 16, rows: 2, kv: KvType::F32, ring: None };
        let (draft, shape) = (load(), TreeShape::chain(2));
        let kind = DraftModelKind { target_vocab: program.vocab, ..DraftModelKind::default() };
        let drafting = Drafting::new(Arc::clone(&draft), kind, shape, limits, (None, None)).unwrap();
        let mut executor = CpuExecutor::new(load(), limits).unwrap().drafting(drafting);
        assert!(draft.unpacked_bytes() > 0);
        Padding::new(&executor.abilities(), 64, None, 1).warm_up(&mut executor).unwrap();
        assert_eq!(draft.unpacked_bytes(), 0);
    }
}
