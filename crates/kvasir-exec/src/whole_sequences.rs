//! Check of a step for encoders: each row must be a whole sequence, computed at once.

use crate::batch::RowKind;
use crate::executor::{Step, StepError};
use kvasir_kv::Mask;

impl Step {
    /// Checks that each row but dummies feeds all tokens of its sequence from position 0 on, samples
    /// at the last one only, and has no causal mask. An encoder's pooling and attention rely on it.
    pub fn check_whole_sequences(&self) -> Result<(), StepError> {
        let rows = self.batch.rows.iter().zip(&self.plan.rows).filter(|(row, _)| row.kind != RowKind::Dummy);
        for (row, planned) in rows {
            let positions = self.plan.positions.get(row.tokens.range()).unwrap_or(&[]);
            let starts = row.cached == 0 && positions.first() == Some(&0);
            let in_line = positions.is_sorted_by(|a, b| a.checked_add(1) == Some(*b));
            let ends = row.sample_from + 1 == row.tokens.len && row.scored.len == 0 && row.drafts.count == 0;
            if !(starts && in_line && ends && planned.mask != Mask::Causal) {
                let why = format!("request {} is no whole sequence, which an encoder needs", row.request);
                return Err(StepError::Failed(why));
            }
        }
        Ok(())
    }
}
