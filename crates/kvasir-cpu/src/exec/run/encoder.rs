//! Encoder ops: lookups by position and token type, and pooling. A step holds whole sequences.

use crate::exec::run::Run;
use kvasir_kv::Token;
use kvasir_program::{LookupIndex, Pooling, WeightId};

impl Run<'_> {
    /// Reads the table row for the `token`-th token of the step.
    pub(crate) fn lookup(&self, table: WeightId, index: LookupIndex, token: usize, y: &mut [f32]) {
        let second_text_start = self.second_text_starts.get(token).copied().unwrap_or(0);
        let rows = self.model.program.weight(table).shape.first().copied().unwrap_or(1);
        let entry = index.row(self.plan.positions[token], second_text_start).min(rows.saturating_sub(1));
        self.embed(table, entry as Token, 1.0, y);
    }

    /// Pools the rows of the `sequence`-th sequence of the step, which ends at its sampled token.
    pub(crate) fn pool(&self, x: &[f32], pooling: Pooling, sequence: usize, y: &mut [f32]) {
        let width = y.len();
        let last = self.sampled[sequence];
        let first = last - self.plan.positions[last] as usize;
        let row = |token: usize| &x[token * width..(token + 1) * width];
        match pooling {
            Pooling::Cls => y.copy_from_slice(row(first)),
            Pooling::Last => y.copy_from_slice(row(last)),
            Pooling::Mean => {
                y.copy_from_slice(row(first));
                for token in first + 1..=last {
                    y.iter_mut().zip(row(token)).for_each(|(y, x)| *y += x);
                }
                let tokens = (last - first + 1) as f32;
                y.iter_mut().for_each(|y| *y /= tokens);
            }
        }
    }
}
