//! Activation memory planning: assigns values to reusable buffers by liveness (linear scan).
//!
//! 1. Find the last op that reads each value.
//! 2. Walk the ops in order. Each result takes the smallest free buffer that is wide enough.
//! 3. After an op, the buffers of values that are no longer read become free.
//!
//! Invariant: an op's result never shares a buffer with one of its operands, because operands are
//! freed only after the result got its buffer.

use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::value::{Holds, Rows, ValueId};
use serde::{Deserialize, Serialize};

/// The assignment of values to buffers.
///
/// A buffer is free again after the last op that reads its value. Selections and routes are not
/// rows of numbers and get no buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Elements per row, and kind of rows, of each buffer.
    pub buffers: Vec<(usize, Rows)>,
    /// The buffer of each value.
    pub of_value: Vec<Option<usize>>,
}

impl Buffers {
    /// Plans the buffers of a program; the values in `keep` are never overwritten.
    pub fn plan(program: &Program, keep: &[ValueId]) -> Self {
        Self::plan_merged(program, keep, &[])
    }

    /// Like [`plan`](Self::plan), for a backend that fuses ops: `merged[i]` says that op `i` runs
    /// inside op `i + 1`.
    ///
    /// The result of a merged op gets no buffer, and its operands stay live until the next op has
    /// run.
    pub fn plan_merged(program: &Program, keep: &[ValueId], merged: &[bool]) -> Self {
        let merged = |at: usize| merged.get(at).copied().unwrap_or(false);
        let last_use = last_uses(program, keep, &merged);
        let mut plan = Self { buffers: Vec::new(), of_value: vec![None; program.values.len()] };
        let mut free: Vec<usize> = Vec::new();
        for (at, op) in program.ops.iter().enumerate() {
            let out = op.out();
            let value = program.value(out);
            if let (Holds::Numbers(width), false) = (value.holds, merged(at)) {
                let buffer = plan.take(&mut free, width, value.rows);
                plan.of_value[out.0 as usize] = Some(buffer);
            }
            let before =
                at.checked_sub(1).filter(|before| merged(*before)).map(|before| &program.ops[before]);
            let also = before.into_iter().flat_map(Op::inputs);
            let mut ended: Vec<ValueId> = op.inputs().chain([out]).chain(also).collect();
            ended.sort_unstable();
            ended.dedup();
            ended.retain(|value| last_use[value.0 as usize] <= at);
            free.extend(ended.iter().filter_map(|value| plan.of_value[value.0 as usize]));
        }
        plan
    }

    /// Best fit: the smallest free buffer that is wide enough, else the widest free one (widened),
    /// else a new one.
    fn take(&mut self, free: &mut Vec<usize>, width: usize, rows: Rows) -> usize {
        let fitting = free.iter().enumerate().filter(|(_, b)| self.buffers[**b].1 == rows);
        let best = fitting.min_by_key(|(_, b)| {
            let has = self.buffers[**b].0;
            if has >= width { (false, has) } else { (true, usize::MAX - has) }
        });
        match best.map(|(place, _)| place) {
            Some(place) => {
                let buffer = free.swap_remove(place);
                self.buffers[buffer].0 = self.buffers[buffer].0.max(width);
                buffer
            }
            None => {
                self.buffers.push((width, rows));
                self.buffers.len() - 1
            }
        }
    }

    /// Elements of activation memory for a step of `tokens` tokens, of which `sampled` yield
    /// logits.
    pub fn numbers(&self, tokens: usize, sampled: usize) -> usize {
        let rows = |kind: Rows| if kind == Rows::Tokens { tokens } else { sampled };
        self.buffers.iter().map(|(width, kind)| width * rows(*kind)).sum()
    }
}

/// Index of the last op that reads each value; `usize::MAX` for logits and for values in `keep`.
fn last_uses(program: &Program, keep: &[ValueId], merged: &dyn Fn(usize) -> bool) -> Vec<usize> {
    let mut last = vec![0; program.values.len()];
    for (at, op) in program.ops.iter().enumerate() {
        let runs_at = at + usize::from(merged(at));
        op.inputs().for_each(|value| last[value.0 as usize] = last[value.0 as usize].max(runs_at));
        let out = op.out();
        last[out.0 as usize] = at;
        if matches!(op, Op::Head { .. }) {
            last[out.0 as usize] = usize::MAX;
        }
    }
    keep.iter().for_each(|value| last[value.0 as usize] = usize::MAX);
    last
}
