//! [`DraftProfile`]: a draft model of the cost model. It proposes chains of tokens.
//!
//! - A draft of level `l` is the target's token with probability `acceptance[l - 1]` if all drafts
//!   before it are. The draw is a hash of the request's seed, the output index and the level.
//! - A level costs one forward pass of the draft model over the rows that it drafts for, by the
//!   same roofline as the target. Prompts that it reads cost one pass more.

use crate::output_source::OutputSource;
use crate::preset::Preset;
use crate::shape::Shape;
use crate::step_work::Load;
use kvasir_exec::{DraftCandidate, DraftProposal, Step};
use kvasir_kv::Span;
use kvasir_sample::{STRIDE, mix};

/// A simulated draft model.
#[derive(Clone, Debug)]
pub struct DraftProfile {
    /// Shape of the draft model; its weights have the type of the target's.
    pub shape: Shape,
    /// Acceptance of each level; the last one holds for all deeper levels.
    pub acceptance: Vec<f64>,
}

impl DraftProfile {
    fn rate(&self, level: u32) -> f64 {
        let last = self.acceptance.len().saturating_sub(1);
        self.acceptance.get((level as usize - 1).min(last)).copied().unwrap_or(0.0)
    }

    /// Work of the draft model after a step: number of passes with the work of each.
    pub(crate) fn work(&self, step: &Step) -> Vec<(u32, Load)> {
        let (mut reading, mut level) = (Load::default(), Load::default());
        let mut levels = 0;
        for (row, planned) in step.batch.rows.iter().zip(&step.plan.rows) {
            if row.kind.is_prefill() && row.feeds_draft {
                reading.add(f64::from(row.tokens.len), 0.0, f64::from(planned.read_len));
            }
            if row.draft_depth > 0 && row.samples() {
                level.add(1.0, 1.0, f64::from(planned.read_len));
                levels = levels.max(row.draft_depth);
            }
        }
        [(1, reading), (levels, level)].into_iter().filter(|(n, load)| *n > 0 && load.tokens > 0.0).collect()
    }

    /// The preset with the shape of the draft model, which is not divided: rank 0 runs it alone.
    pub(crate) fn preset(&self, target: &Preset) -> Preset {
        Preset::new(target.machine, self.shape)
    }

    /// Proposes drafts behind row `row` of a step whose newest output has this index in the answer.
    pub(crate) fn propose(
        &self,
        step: &mut Step,
        row: usize,
        (seed, newest): (u64, u32),
        answers: &dyn OutputSource,
    ) {
        let depth = step.batch.rows[row].draft_depth;
        let (start, mut cumulative) = (step.output.candidates.len(), 0.0);
        for level in 1..=depth {
            let (index, rate) = (newest + level, self.rate(level));
            let draw = mix(mix(seed ^ u64::from(index).wrapping_mul(STRIDE)) ^ u64::from(level));
            let is_right = (draw >> 11) as f64 / ((1u64 << 53) as f64) < rate;
            let token = answers.token(seed, index);
            let log_probability = rate.max(1e-3).ln() as f32;
            cumulative += log_probability;
            step.output.candidates.push(DraftCandidate {
                token: if is_right { token } else { token ^ 1 },
                parent: level as i32 - 2,
                level,
                log_probability,
                cumulative,
                kept: true,
            });
        }
        let candidates = Span::new(start, depth as usize);
        step.output.proposals.push(DraftProposal { row: row as u32, candidates });
    }
}
