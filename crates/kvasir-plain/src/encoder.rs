//! Reference semantics of the encoder ops: lookups by position and token type, and pooling.

use crate::run::Run;
use kvasir_program::{LookupIndex, Pooling, ValueId, WeightId};

impl Run<'_> {
    /// Copies one row of the table per token.
    pub(crate) fn lookup(&self, table: WeightId, index: LookupIndex, y: &mut [f32], width: usize) {
        let job = &self.job;
        let last = job.program.weight(table).shape.first().map_or(0, |rows| rows.saturating_sub(1));
        let tokens = job.plan.positions.iter().zip(&self.row_of);
        for (y, (position, row)) in y.chunks_exact_mut(width).zip(tokens) {
            let entry = index.row(*position, job.second_text_starts[*row]).min(last);
            y.copy_from_slice(job.weights.row(table, entry, width));
        }
    }

    /// Pools each sequence to one row. Sequences start at position 0 and end at their sampled
    /// token.
    pub(crate) fn pool(&self, x: ValueId, pooling: Pooling, y: &mut [f32], width: usize) {
        let x = self.value(x);
        let row = |token: usize| &x[token * width..(token + 1) * width];
        for (y, last) in y.chunks_exact_mut(width).zip(&self.sampled) {
            let first = last - self.job.plan.positions[*last] as usize;
            match pooling {
                Pooling::Cls => y.copy_from_slice(row(first)),
                Pooling::Last => y.copy_from_slice(row(*last)),
                Pooling::Mean => {
                    for token in first..=*last {
                        y.iter_mut().zip(row(token)).for_each(|(y, x)| *y += x);
                    }
                    let tokens = (last - first + 1) as f32;
                    y.iter_mut().for_each(|y| *y /= tokens);
                }
            }
        }
    }
}
