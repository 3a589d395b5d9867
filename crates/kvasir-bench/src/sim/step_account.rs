//! `StepAccount`: divides the time of a replica's steps by cause.
//!
//! A step's time without collectives is divided among its rows ([`StepBreakdown`]). Each token that
//! a prefill row feeds counts for the first cause that applies to its position:
//!
//! 1. This run of the request has computed it before: recomputation after a preemption.
//! 2. An earlier run of the request had computed it: recomputation after a failure or a hand-off.
//! 3. Any replica had computed it before the request arrived: a lost prefix.
//! 4. Otherwise: prefill.

use crate::sim::time_breakdown::TimeBreakdown;
use kvasir_engine::RequestId;
use kvasir_exec::{RowKind, Step};
use kvasir_sim::{Preset, StepBreakdown};

/// Why the earlier run of a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MoveCause {
    #[default]
    Failure,
    HandOff,
}

/// Number of leading tokens of a request that were computed before its run on this replica.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputedBefore {
    /// Prompt tokens that any replica had computed when the request arrived.
    pub(crate) by_any_replica: u32,
    /// Prompt and output tokens of the request when its last run ended.
    pub(crate) by_earlier_runs: u32,
    pub(crate) cause: MoveCause,
}

/// Time of the steps of one replica, in nanoseconds.
#[derive(Debug)]
pub(crate) struct StepAccount {
    preset: Preset,
    step: StepBreakdown,
    pub(crate) times: TimeBreakdown,
    /// By the request's index in the core.
    runs: Vec<RunProgress>,
}

/// Progress of a request's run.
#[derive(Clone, Copy, Debug, Default)]
struct RunProgress {
    before: ComputedBefore,
    /// Tokens that this run has computed.
    computed: u32,
}

impl StepAccount {
    pub(crate) fn new(preset: Preset) -> Self {
        Self { preset, step: StepBreakdown::default(), times: TimeBreakdown::default(), runs: Vec::new() }
    }

    /// Begins the run of a request.
    pub(crate) fn begin(&mut self, id: RequestId, before: ComputedBefore) {
        let at = id.index() as usize;
        if self.runs.len() <= at {
            self.runs.resize(at + 1, RunProgress::default());
        }
        self.runs[at] = RunProgress { before, computed: 0 };
    }

    /// Adds a completed step.
    pub(crate) fn completed(&mut self, step: &Step) {
        if step.batch.is_dummy() {
            return;
        }
        self.step.attribute(&self.preset, step);
        let collectives = self.step.collectives_ns.min(step.output.device_ns as f64);
        let computing = step.output.device_ns as f64 - collectives;
        self.times.collectives += collectives;
        self.times.drafts += step.output.draft_ns as f64;
        for (row, share) in step.batch.rows.iter().zip(&self.step.row_shares) {
            let (ns, from) = (computing * share, row.context_len.saturating_sub(row.tokens.len));
            let Some(run) = self.runs.get_mut(RequestId(row.request).index() as usize) else { continue };
            if row.kind == RowKind::Prefill {
                let per_token = ns / f64::from(row.tokens.len.max(1));
                let mut at = from;
                // Time of the row's tokens below a bound, without those below an earlier bound.
                let mut below = |bound: u32| {
                    let end = bound.clamp(at, row.context_len);
                    per_token * f64::from(end - std::mem::replace(&mut at, end))
                };
                self.times.after_preemption += below(run.computed);
                let earlier = below(run.before.by_earlier_runs);
                match run.before.cause {
                    MoveCause::Failure => self.times.after_failure += earlier,
                    MoveCause::HandOff => self.times.after_hand_off += earlier,
                }
                self.times.lost_prefixes += below(run.before.by_any_replica);
                self.times.prefill += below(u32::MAX);
            } else {
                self.times.decode += ns;
            }
            run.computed = run.computed.max(row.context_len.saturating_sub(row.drafts.count));
        }
    }
}
