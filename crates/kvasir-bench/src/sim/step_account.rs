//! `StepAccount`: divides the time of a replica's steps by cause.
//!
//! A step's time without collectives is divided among its rows ([`StepTimes`]). The positions that a
//! prefill row feeds are divided by the first cause that holds:
//!
//! 1. below what the run has computed before: after a preemption;
//! 2. below what earlier runs of the request had: after a failure or a hand-off;
//! 3. below what any replica had computed when the request arrived: a lost prefix;
//! 4. else prefill.

use crate::sim::time_use::TimeUse;
use kvasir_engine::RequestId;
use kvasir_exec::{RowKind, Step};
use kvasir_sim::{Preset, StepTimes};

/// Why a run of a request computes tokens that earlier runs had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MoveCause {
    #[default]
    Failure,
    HandOff,
}

/// What was computed of a request before its run on this replica.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputedBefore {
    /// Leading prompt tokens that any replica had computed when the request arrived.
    pub(crate) known: u32,
    /// Tokens that earlier runs of the request had.
    pub(crate) moved: u32,
    pub(crate) cause: MoveCause,
}

/// Time of the steps of one replica, in nanoseconds.
#[derive(Debug)]
pub(crate) struct StepAccount {
    preset: Preset,
    times: StepTimes,
    pub(crate) spent: TimeUse,
    /// By the request's index in the core: what was computed before, and the tokens that the run has
    /// computed.
    runs: Vec<(ComputedBefore, u32)>,
}

impl StepAccount {
    pub(crate) fn new(preset: Preset) -> Self {
        Self { preset, times: StepTimes::default(), spent: TimeUse::default(), runs: Vec::new() }
    }

    /// Begins the run of a request.
    pub(crate) fn begin(&mut self, id: RequestId, before: ComputedBefore) {
        let at = id.index() as usize;
        if self.runs.len() <= at {
            self.runs.resize(at + 1, Default::default());
        }
        self.runs[at] = (before, 0);
    }

    /// Adds a completed step.
    pub(crate) fn completed(&mut self, step: &Step) {
        if step.batch.is_dummy() {
            return;
        }
        self.times.measure(&self.preset, step);
        let collectives = self.times.collectives.min(step.output.device_ns as f64);
        let computing = step.output.device_ns as f64 - collectives;
        self.spent.collectives += collectives;
        self.spent.drafts += step.output.draft_ns as f64;
        for (row, share) in step.batch.rows.iter().zip(&self.times.rows) {
            let (ns, from) = (computing * share, row.context_len.saturating_sub(row.tokens.len));
            let Some((before, computed)) = self.runs.get_mut(RequestId(row.request).index() as usize) else {
                continue;
            };
            if row.kind == RowKind::Prefill {
                let per_token = ns / f64::from(row.tokens.len.max(1));
                let mut at = from;
                // Tokens of the row below a bound that no earlier bound has counted.
                let mut below = |bound: u32| {
                    let end = bound.clamp(at, row.context_len);
                    per_token * f64::from(end - std::mem::replace(&mut at, end))
                };
                self.spent.after_preemption += below(*computed);
                let moved = below(before.moved);
                match before.cause {
                    MoveCause::Failure => self.spent.after_failure += moved,
                    MoveCause::HandOff => self.spent.after_hand_off += moved,
                }
                self.spent.lost_prefixes += below(before.known);
                self.spent.prefill += below(u32::MAX);
            } else {
                self.spent.decode += ns;
            }
            *computed = (*computed).max(row.context_len.saturating_sub(row.drafts.count));
        }
    }
}
