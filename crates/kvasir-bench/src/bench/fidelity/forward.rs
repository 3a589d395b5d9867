//! Forward passes of one sequence on the CPU executor, with the logits of every token.

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits};
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, RowKind, SequenceSpec, Step};
use kvasir_kv::{Cache, ClaimRow, Contiguous, SeqId, Span, StepId, Token};
use kvasir_program::Tap;
use std::sync::Arc;

/// A sequence and the executor that runs it.
pub(crate) struct Forward {
    executor: CpuExecutor,
    cache: Contiguous,
    sequence: SeqId,
    next: u64,
    vocab: usize,
}

/// Logits of the tokens of one step.
pub(crate) struct Logits {
    all: Vec<f32>,
    vocab: usize,
}

impl Logits {
    /// A row per token.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.all.chunks(self.vocab)
    }
}

impl Forward {
    /// An empty sequence that may grow to `tokens`.
    pub(crate) fn new(model: &Arc<CpuModel>, kv: KvType, tokens: usize) -> Result<Self, String> {
        let slots = u32::try_from(tokens).map_err(|e| e.to_string())?;
        let limits = Limits { slots, tokens: slots.min(super::CHUNK as u32), rows: 1, kv, ring: None };
        let mut executor = CpuExecutor::new(Arc::clone(model), limits).map_err(|e| e.to_string())?;
        executor.bind(PoolRow(0), SequenceSpec { final_len: slots, ..SequenceSpec::default() });
        let mut cache = Contiguous::new(slots);
        let sequence = cache.open().map_err(|e| e.to_string())?;
        Ok(Self { executor, cache, sequence, next: 1, vocab: model.program().vocab })
    }

    /// Appends tokens; returns the next-token logits after each.
    pub(crate) fn feed(&mut self, tokens: &[Token]) -> Result<Logits, String> {
        let (id, seq) = (StepId(self.next), self.sequence);
        self.next += 1;
        let cached = self.cache.len(seq).map_err(|e| e.to_string())?;
        let count = tokens.len() as u32;
        self.cache.claim(id, &[ClaimRow::new(seq, count)]).map_err(|e| e.to_string())?;
        let mut step = Box::<Step>::default();
        self.cache.plan(id, &mut step.plan).map_err(|e| e.to_string())?;
        let row = BatchRow {
            seq,
            kind: RowKind::Prefill,
            tokens: Span::new(0, tokens.len()),
            cached,
            context_len: cached + count,
            last_block_tokens: 1,
            sample_from: 0,
            ..BatchRow::default()
        };
        step.batch =
            Batch { step: id, tokens: tokens.to_vec(), rows: vec![row], logits: true, ..Batch::default() };
        let pending = self.executor.submit(step).map_err(|refused| refused.error.to_string())?;
        let (mut step, result) = self.executor.wait(pending);
        result.map_err(|e| e.to_string())?;
        self.cache.retire(id).map_err(|e| e.to_string())?;
        Ok(Logits { all: std::mem::take(&mut step.output.logits), vocab: self.vocab.max(1) })
    }

    /// The last step's rows of a tap.
    pub(crate) fn tap(&self, tap: Tap) -> Option<&[f32]> {
        self.executor.tap(tap)
    }
}
