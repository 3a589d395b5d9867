//! A program's ops, one after the other, over one step.

mod attend;
mod memory;
mod ops;
mod values;

use crate::lowering::{GATE, Runs};
use crate::matmul::{AT_ONCE, Output};
use crate::model::{CpuModel, OpWeights};
use crate::parts::{Parts, by_rows};
use crate::pool::Pool;
use crate::prepared::Operand;
use kvasir_exec::Ranks;
use kvasir_kv::{Plan, Slot, Token};
use kvasir_program::Op;
pub(crate) use memory::Memory;
use std::ops::Range;
use std::sync::Arc;

/// One step; everything in it is checked.
pub(crate) struct Run<'a> {
    pub(crate) model: &'a CpuModel,
    pub(crate) plan: &'a Plan,
    pub(crate) tokens: &'a [Token],
    /// What programs of prediction layers go on from: a row per token.
    pub(crate) hidden: &'a [f32],
    /// Longest that the sequence of each token may become.
    pub(crate) final_lens: &'a [u32],
    /// Tokens whose logits are wanted.
    pub(crate) sampled: &'a [usize],
    /// Slots that are written, each once, with the token whose rows they get.
    pub(crate) writes: &'a [(Slot, u32)],
    /// The session's own pool first.
    pub(crate) pools: &'a [Arc<Pool>],
    /// Those that have other parts of the model.
    pub(crate) ranks: Option<&'a dyn Ranks>,
}

impl Run<'_> {
    /// Runs all ops; the logits can be read from `m` afterwards.
    ///
    /// # Safety
    /// All slots that are named must exist in their pools, `writes` name each once, memory be made for so many tokens of the model, and nobody else may write
    /// what is read of pools, or use what is written, meanwhile.
    pub(crate) unsafe fn all(&self, m: &mut Memory) {
        m.prepared.forget();
        m.routes.clear();
        m.selections.clear();
        m.turns.iter_mut().for_each(Vec::clear);
        self.look_into_rings(m);
        let mut at = 0;
        while let Some(op) = self.model.program.ops.get(at) {
            let weights = &self.model.weights[at];
            // Of a part of a prompt nothing may be sampled: a matrix times no rows would still be read.
            let idle = !matches!(weights, OpWeights::None) && self.rows(op.out()) == 0;
            at += match self.model.how.runs[at] {
                Runs::Inside => 1,
                _ if idle => 1,
                Runs::Gate { .. } if self.gate(at, m) => GATE,
                Runs::Gate { together } | Runs::Together(together) => {
                    self.products(at..at + together, m);
                    together
                }
                Runs::Alone => {
                    self.op((op, self.before(at)), weights, m);
                    1
                }
            };
        }
    }

    /// The op that runs inside op `at`.
    fn before(&self, at: usize) -> Option<&Op> {
        let inside = |before: &usize| matches!(self.model.how.runs[*before], Runs::Inside);
        at.checked_sub(1).filter(inside).map(|before| &self.model.program.ops[before])
    }

    /// Runs neighbouring matrices that take the same rows.
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
            // SAFETY: no two of them have a result in one place, and only they write now.
            let y = unsafe { self.value_mut(values, *out) };
            Some((l, Output::new(y, self.rows(*out), self.width(*out), l.outputs)))
        };
        // An array, not a list: a step allocates nothing.
        let mut wanted = [const { None }; AT_ONCE];
        wanted.iter_mut().zip(ops.clone()).for_each(|(wanted, at)| *wanted = product(at));
        let [Some((first, _)), ..] = &wanted else { return };
        let Some(x) = self.model.program.ops[ops.start].inputs().next() else { return };
        let rows = match &make {
            Some(make) => Operand::Made(make),
            None => Operand::Rows(self.value(values, x), first.inputs),
        };
        let units = (&*self.model.team, self.model.level);
        m.prepared.multiply(units, &mut wanted, Some(x), &rows);
        if let Op::Head { out, soft_cap: Some(cap), .. } = &self.model.program.ops[ops.start] {
            // SAFETY: only this writes it now.
            let parts = Parts::new(unsafe { self.value_mut(values, *out) }, self.width(*out));
            by_rows(units.0, self.rows(*out), &|row| {
                // SAFETY: each row goes to one thread.
                unsafe { parts.row(row) }.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
            });
        }
    }

    /// Runs a gate, its partner and what joins them as one, if that pays.
    fn gate(&self, at: usize, m: &mut Memory) -> bool {
        if let [Op::Linear { x, .. }, _, Op::Gate { activation, out, .. }] =
            &self.model.program.ops[at..at + GATE]
            && let [OpWeights::One(gate), OpWeights::One(up)] = &self.model.weights[at..at + 2]
        {
            let values = &m.values;
            let make =
                self.before(at).map(|op| move |row: usize, x: &mut [f32]| self.row(op, values, row, x));
            let rows = match &make {
                Some(make) => Operand::Made(make),
                None => Operand::Rows(self.value(values, *x), gate.inputs),
            };
            let units = (&*self.model.team, self.model.level);
            return m.prepared.gate(units, (gate, up, *activation), (*x, rows), self.rows(*out), *out);
        }
        false
    }
}
