//! [`SpeculationControl`]: controls speculative decoding per step. Before a step `prune_drafts`, then
//! `plan_depth` and `plan_draft_row` for a draft model; after it `observe_*`.

use crate::request::proposal::Proposal;
use crate::request::sequence::Sequence;
use crate::scheduler::requests::Requests;
use crate::scheduler::schedule::Schedule;
use crate::speculation::depth::DepthControl;
use crate::speculation::statistics::DraftStats;
use crate::speculation::step_times::StepTimes;
use crate::speculation::width::{DraftWidth, WidthControl};
use kvasir_exec::{Batch, BatchRow, Output};

#[derive(Debug, Default)]
pub(crate) struct SpeculationControl {
    draft_width: DraftWidth,
    /// Drafts that a step verifies.
    width: WidthControl,
    /// Levels that the executor's draft model proposes.
    depth: DepthControl,
    /// Times of the target's steps.
    times: StepTimes,
    stats: DraftStats,
}

impl SpeculationControl {
    pub(crate) fn set_draft_width(&mut self, width: DraftWidth) {
        self.draft_width = width;
    }

    /// Sets the number of levels that the executor's draft model may propose; 0 without one.
    pub(crate) fn set_model_depth(&mut self, max_depth: u32) {
        self.depth.max_depth = max_depth;
    }

    /// Draft acceptance statistics.
    pub(crate) fn stats(&self) -> &DraftStats {
        &self.stats
    }

    /// Drops the drafts that the next step is faster without.
    pub(crate) fn prune_drafts(&mut self, requests: &mut Requests) {
        if self.draft_width == DraftWidth::Adaptive {
            let dropped = self.width.choose(requests, &self.times);
            dropped.iter().for_each(|probability| self.depth.observe_dropped(f64::from(*probability)));
        }
    }

    /// Decides which scheduled sequences the draft model reads, and how many levels it proposes after
    /// the step. `load` is the number of running and waiting requests, at most `max_num_seqs`.
    pub(crate) fn plan_depth(&mut self, requests: &mut Requests, schedule: &Schedule, load: u32) {
        if !self.depth.has_model() {
            return;
        }
        let times = (self.draft_width == DraftWidth::Adaptive).then_some(&self.times);
        let (mut prefill, mut rows, mut followed) = (false, 0, 0);
        for row in schedule.rows() {
            let sequence = &mut requests[row.entry];
            let follows = self.depth.follows(times, sequence, load);
            let samples = sequence.claimed + row.tokens == sequence.len();
            prefill |= row.kind.is_prefill();
            rows += u32::from(samples);
            followed += u32::from(samples && follows);
        }
        self.depth.choose(times, rows.max(1), followed, prefill);
    }

    /// Sets `draft_depth` and `feeds_draft` of one batch row.
    pub(crate) fn plan_draft_row(&self, sequence: &Sequence, row: &mut BatchRow) {
        if self.depth.has_model() {
            self.depth.plan_draft_row(sequence, row);
        }
    }

    /// Updates the measured step times of the target and of the draft model.
    pub(crate) fn observe_step(&mut self, batch: &Batch, output: &Output) {
        if batch.rows.iter().all(|row| !row.kind.is_prefill()) {
            self.times.observe(batch.tokens.len() as u32, output.device_ns);
        }
        if self.depth.has_model() {
            self.depth.observe_step(batch, output);
        }
    }

    /// Updates the acceptance rates with a verified proposal of `depth` levels, of which the nodes
    /// `accepted`, numbered from 1, were accepted. `reliability` is the request's average ratio of
    /// observed to expected acceptance.
    pub(crate) fn observe_drafts(
        &mut self,
        drafts: &Proposal,
        depth: usize,
        accepted: &[u32],
        reliability: &mut f32,
    ) {
        if self.depth.has_model() {
            self.depth.observe_drafts(depth, accepted.len());
        }
        self.width.observe_drafts(drafts, accepted, reliability);
    }

    /// Counts a verification of `drafts` drafts of `depth` levels.
    pub(crate) fn record_verification(&mut self, drafts: usize, depth: usize, accepted: usize) {
        self.stats.count(drafts, depth, accepted);
    }

    /// Updates the average number of output tokens per request.
    pub(crate) fn observe_completion(&mut self, outputs: u32) {
        self.depth.observe_completion(outputs);
    }
}
