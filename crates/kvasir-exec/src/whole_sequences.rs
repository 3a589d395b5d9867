//! Validation of the steps of encoders: each row must be a whole sequence.

use crate::batch::RowKind;
use crate::executor::{Step, StepError};
use kvasir_kv::Mask;

impl Step {
    /// Checks that each row, except dummies, feeds its sequence from position 0 on, samples at the
    /// last token only, and has no causal mask. Bidirectional attention and pooling rely on this.
    pub fn check_whole_sequences(&self) -> Result<(), StepError> {
        let rows = self.batch.rows.iter().zip(&self.plan.rows).filter(|(row, _)| row.kind != RowKind::Dummy);
        for (row, planned) in rows {
            let positions = self.plan.positions.get(row.tokens.range()).unwrap_or(&[]);
            let starts_at_zero = row.cached == 0 && positions.first() == Some(&0);
            let is_contiguous = positions.is_sorted_by(|a, b| a.checked_add(1) == Some(*b));
            let samples_at_end_only =
                row.sample_from + 1 == row.tokens.len && row.scored.len == 0 && row.drafts.count == 0;
            if !(starts_at_zero && is_contiguous && samples_at_end_only && planned.mask != Mask::Causal) {
                let why = format!(
                    "the row of request {} is not a whole sequence or is causal, which encoders do not support",
                    row.request
                );
                return Err(StepError::Failed(why));
            }
        }
        Ok(())
    }
}
