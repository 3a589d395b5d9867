//! The forward pass: runs a program's ops one after the other over one step (batch).
//!
//! Each op is a parallel region on the thread pool, so its writes are visible to the next op. The
//! step was validated by the executor (`executor/validate.rs`); nothing here checks slots again.

pub(crate) mod attend;
pub(crate) mod encoder;
pub(crate) mod memory;
pub(crate) mod ops;
pub(crate) mod recurrent;
pub(crate) mod sparse;
pub(crate) mod values;

use crate::exec::lowering::{GATED_MLP_OPS, Runs};
use crate::exec::model::CpuModel;
use crate::exec::run::memory::Memory;
use crate::exec::run::recurrent::States;
use crate::gemm::linear::{GateAndUp, Operand};
use crate::gemm::output::{AT_ONCE, Output};
use crate::memory::kv_pool::Pool;
use crate::threads::rows::{DisjointRows, for_each_row};
use crate::weights::linear::OpWeights;
use kvasir_exec::{ExpertExchange, Ranks, StepError};
use kvasir_kv::{Plan, Slot, Token};
use kvasir_program::Op;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One validated step: the model, the plan and the batch.
pub(crate) struct Run<'a> {
    pub(crate) model: &'a CpuModel,
    pub(crate) plan: &'a Plan,
    pub(crate) tokens: &'a [Token],
    /// Hidden states of the target model that MTP (draft) layers continue from: a row per token.
    pub(crate) hidden: &'a [f32],
    /// Final length (prompt plus limit) of each token's sequence; long-context ropes depend on it.
    pub(crate) final_lens: &'a [u32],
    /// Position of the first token of type 1 in each token's sequence (encoders only); 0 if there
    /// is none.
    pub(crate) second_text_starts: &'a [u32],
    /// Tokens whose logits are wanted, in rising order.
    pub(crate) sampled: &'a [usize],
    /// KV slots to write by layer group, each named once, with the token whose rows go there.
    pub(crate) writes: &'a [Vec<(Slot, u32)>],
    /// KV pools that the plan reads; the session's own pool comes first.
    pub(crate) pools: &'a [Arc<Pool>],
    /// The other ranks of a tensor-parallel model.
    pub(crate) ranks: Option<&'a dyn Ranks>,
    /// Exchanges rows with the other expert-parallel replicas.
    pub(crate) expert_exchange: Option<&'a dyn ExpertExchange>,
}

impl Run<'_> {
    /// Runs the forward pass; afterwards `logits` reads its result from `m`. Returns the error of
    /// the first op that fails.
    ///
    /// After an error the states of the step's sequences are unspecified: layers before the failed
    /// op have overwritten them in place. The engine fails these sequences and neither
    /// publishes nor retains anything of them, so no later step reads these states. If the group of
    /// ranks is lost, the engine ends.
    ///
    /// # Safety
    /// All slots that the plan names must exist in their pools, and `writes` must name each once.
    /// `m` must have been made for the model and as many tokens. `states.inputs` must come from a
    /// validated step. During the call, no other thread may write the KV rows that are read, or
    /// access the states or the KV rows that are written.
    pub(crate) unsafe fn all(
        &self,
        m: &mut Memory,
        mut states: Option<&mut States>,
    ) -> Result<(), StepError> {
        m.prepared.invalidate();
        m.routes.clear();
        m.selections.clear();
        m.key_pools.clear();
        m.rotary_tables.iter_mut().for_each(Vec::clear);
        self.build_ring_views(m);
        let mut at = 0;
        while let Some(op) = self.model.program.ops.get(at) {
            self.model.ops_run.store(at, Ordering::Relaxed);
            let weights = &self.model.weights[at];
            // An op without rows is skipped: a prefill chunk may sample nothing, and a GEMM would
            // still read its weights. An exchange is never skipped, because the other replicas wait
            // for it.
            let is_exchange = self.expert_exchange.is_some() && matches!(op, Op::Mixture { .. });
            let has_weights = !matches!(weights, OpWeights::None);
            let is_skipped = has_weights && !is_exchange && self.rows(op.out()) == 0;
            at += match self.model.lowered.runs[at] {
                Runs::Fused => 1,
                _ if is_skipped => 1,
                Runs::GatedMlp { .. } if self.gate(at, m) => GATED_MLP_OPS,
                Runs::GatedMlp { matrices } | Runs::Merged(matrices) => {
                    self.products(at..at + matrices, m);
                    matrices
                }
                Runs::Single if op.state().is_some() => {
                    if let Some(states) = states.as_deref_mut() {
                        // SAFETY: as the caller vouches.
                        unsafe { self.recurrent(op, states, &m.values) };
                    }
                    1
                }
                Runs::Single => {
                    self.op(op, self.before(at), weights, m);
                    if let Some(error) = m.error.take() {
                        return Err(error);
                    }
                    1
                }
            };
        }
        self.model.ops_run.store(at, Ordering::Relaxed);
        Ok(())
    }

    /// The op that is fused into op `at`.
    fn before(&self, at: usize) -> Option<&Op> {
        let fused = |before: &usize| matches!(self.model.lowered.runs[*before], Runs::Fused);
        at.checked_sub(1).filter(fused).map(|before| &self.model.program.ops[before])
    }

    /// Runs neighboring GEMMs that read the same rows in one pass, with the op fused into them.
    fn products(&self, ops: Range<usize>, m: &mut Memory) {
        let values = &m.values;
        let make =
            self.before(ops.start).map(|op| move |row: usize, x: &mut [f32]| self.row(op, values, row, x));
        let product = |at: usize| {
            let (Op::Linear { out, .. } | Op::Head { out, .. }, OpWeights::One(l)) =
                (&self.model.program.ops[at], &self.model.weights[at])
            else {
                return None;
            };
            // SAFETY: no two of them share an output buffer, and only they write now.
            let y = unsafe { self.value_mut(values, *out) };
            Some((l, Output::new(y, self.rows(*out), self.width(*out), l.outputs)))
        };
        // An array, not a `Vec`: a steady decode step must not allocate.
        let mut products = [const { None }; AT_ONCE];
        products.iter_mut().zip(ops.clone()).for_each(|(to, at)| *to = product(at));
        let [Some((first, _)), ..] = &products else { return };
        let Some(x) = self.model.program.ops[ops.start].inputs().next() else { return };
        let rows = match &make {
            Some(make) => Operand::Made(make),
            None => Operand::Rows(self.value(values, x), first.inputs),
        };
        m.prepared.multiply(&self.model.threads, &mut products, Some(x), &rows);
        if let Op::Head { out, scale, soft_cap, .. } = &self.model.program.ops[ops.start]
            && (*scale != 1.0 || soft_cap.is_some())
        {
            // SAFETY: only this writes the logits now.
            let parts = DisjointRows::new(unsafe { self.value_mut(values, *out) }, self.width(*out));
            for_each_row(&self.model.threads, self.rows(*out), &|_, row| {
                // SAFETY: each row goes to one thread.
                for y in unsafe { parts.row(row) } {
                    let logit = *y * scale;
                    *y = soft_cap.map_or(logit, |cap| cap * (logit / cap).tanh());
                }
            });
        }
    }

    /// Runs the fused gate-up GEMM with its activation, if that pays; returns whether it ran.
    fn gate(&self, at: usize, m: &mut Memory) -> bool {
        if let [Op::Linear { x, .. }, _, Op::Gate { activation, out, .. }] =
            &self.model.program.ops[at..at + GATED_MLP_OPS]
            && let [OpWeights::One(gate), OpWeights::One(up)] = &self.model.weights[at..at + 2]
        {
            let values = &m.values;
            let make =
                self.before(at).map(|op| move |row: usize, x: &mut [f32]| self.row(op, values, row, x));
            let rows = match &make {
                Some(make) => Operand::Made(make),
                None => Operand::Rows(self.value(values, *x), gate.inputs),
            };
            let both = GateAndUp { gate, up, activation: *activation };
            return m.prepared.gate(&self.model.threads, both, *x, &rows, self.rows(*out), *out);
        }
        false
    }
}
