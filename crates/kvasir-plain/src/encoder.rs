//! Reference semantics of the ops of encoders: lookups by position and token type, and pooling.

use crate::run::Run;
use kvasir_program::{LookupIndex, Pooling, ValueId, WeightId};

impl Run<'_> {
    /// One row of a table per token.
    pub(crate) fn lookup(&self, table: WeightId, index: LookupIndex, y: &mut [f32], width: usize) {
        let job = &self.job;
        let last = job.program.weight(table).shape.first().map_or(0, |rows| rows.saturating_sub(1));
        let tokens = job.plan.positions.iter().zip(&self.row_of);
        for (y, (position, row)) in y.chunks_exact_mut(width).zip(tokens) {
            let at = index.row(*position, job.second_texts[*row]).min(last);
            y.copy_from_slice(job.weights.row(table, at, width));
        }
    }

    /// One row per sequence, which ends at a sampled token and begins at position 0.
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
