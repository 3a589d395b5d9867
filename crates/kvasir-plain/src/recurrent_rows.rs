//! Runs a recurrent op over the rows of a step; reads and writes the state pool.
//!
//! For each row except dummy rows, as `kvasir_kv::StateSection` specifies:
//!
//! 1. Read the state of slot `from`, in the own pool or that of a shared prefix, or zeros.
//! 2. Collect the inputs: the first `replay` rows of the tail, then the queries after the first
//!    `skip`.
//! 3. Apply the inputs in order. Each query writes its result; results of skipped queries stay
//!    zero.
//! 4. Store the state after `commit` inputs to slot `to`, and the state after `save.after` inputs
//!    to the slot of each save.
//! 5. Store the inputs after `commit`, which are those of draft tokens, to the tail.

use crate::recurrent::{Inputs, Readout, Recurrence, RecurrentOperands};
use crate::run::Run;
use kvasir_exec::RowKind;
use kvasir_kv::{PoolId, StateRow};
use kvasir_program::Op;

impl Run<'_> {
    /// Computes a recurrent op into `y`, whose rows have `width` elements.
    pub(crate) fn run_recurrent(&mut self, op: &Op, y: &mut [f32], width: usize) {
        let job = self.job;
        let (Some(recurrence), Some(operands)) = (Recurrence::of(op, job.weights), RecurrentOperands::of(op))
        else {
            return;
        };
        let states = &job.plan.states;
        for (row, state_row) in job.batch.rows.iter().zip(&states.rows) {
            if row.kind == RowKind::Dummy {
                continue;
            }
            let StateRow { from, to, tail, replay, skip, commit, saves } = *state_row;
            let id = operands.state;
            let mut state = match from {
                Some((PoolId(0), slot)) => self.states.state(slot, id),
                Some((pool, slot)) => job.frozen[&pool].states.state(slot, id),
                None => vec![0.0; job.program.states[id.0 as usize].elements],
            };
            let queries: Vec<usize> = row.tokens.range().skip(skip as usize).collect();
            let mut inputs = self.states.tail(tail, replay, id);
            inputs.extend(queries.iter().map(|token| self.input(&operands.inputs, *token)));
            for (after, input) in (1..).zip(&inputs) {
                let query = (after as usize).checked_sub(replay as usize + 1).map(|index| queries[index]);
                let readout = query.map(|token| Readout {
                    operand: operands.readout.map_or(&[], |operand| self.token(operand, token)),
                    y: &mut y[token * width..(token + 1) * width],
                });
                recurrence.apply(input, &mut state, readout);
                if after == commit {
                    self.states.write_state(to, id, &state);
                }
                for save in states.saves[saves.range()].iter().filter(|save| save.after == after) {
                    self.states.write_state(save.slot, id, &state);
                }
            }
            self.states.write_tail(tail, id, &inputs[commit as usize..]);
        }
    }

    /// The input of a token: its row of each operand, concatenated, or its id.
    fn input(&self, inputs: &Inputs, token: usize) -> Vec<f32> {
        match inputs {
            Inputs::Values(values) => values.iter().flat_map(|v| self.token(*v, token)).copied().collect(),
            Inputs::TokenId => vec![self.job.tokens[token] as f32],
        }
    }
}
