//! The decision record of one `Core::schedule` call: arrivals, admissions, preemptions, deferrals,
//! pool usage and costs. Its memory is reused from step to step.

use crate::rectangular::RectangleRecord;
use crate::{Costs, Reason, RequestId};
use kvasir_exec::StepKind;
use kvasir_kv::{Room, StepId};
use serde::{Deserialize, Serialize};

/// Time in nanoseconds of whatever clock the caller lives by.
pub type Nanos = u64;

/// A request that entered the running ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The request.
    pub request: RequestId,
    /// Tokens that were in the cache already.
    pub hit: u32,
}

/// A request that came since the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The request.
    pub request: RequestId,
    /// Its number in the order of arrival.
    pub number: u64,
    /// The caller's own number for it.
    pub tag: u64,
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Tokens that it may yield.
    pub max_tokens: u32,
}

/// A request that was looked at and not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The request.
    pub request: RequestId,
    /// Why.
    pub reason: Reason,
}

/// What one call of `schedule` decided beside the batch and plan of its step. Its memory is reused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, or none if nothing could run.
    pub step: Option<StepId>,
    /// When it was scheduled.
    pub at: Nanos,
    /// What it consists of.
    pub kind: StepKind,
    /// Requests that came since the last step was made, the refused among them included.
    pub arrived: Vec<Arrival>,
    /// Requests that were admitted.
    pub admitted: Vec<Admission>,
    /// Requests that went back to the queue.
    pub preempted: Vec<RequestId>,
    /// Requests that were looked at and not run.
    pub held: Vec<Held>,
    /// Why all running requests that are neither in the step nor in `held` did not run.
    pub rest_running: Option<Reason>,
    /// Why all waiting requests that are not in `held` did not run.
    pub rest_waiting: Option<Reason>,
    /// Requests that wait after it.
    pub waiting: u32,
    /// Requests that run after it, those in the step included.
    pub running: u32,
    /// The pool after it.
    pub room: Room,
    /// Slots promised to running requests and not claimed yet.
    pub promised: u32,
    /// What the policy was told that steps cost.
    pub costs: Costs,
    /// What a rectangular policy decided; empty under others.
    #[serde(default, skip_serializing_if = "RectangleRecord::is_empty")]
    pub rectangle: RectangleRecord,
}

impl StepRecord {
    pub(crate) fn reset(&mut self, at: Nanos, arrived: &mut Vec<Arrival>) {
        if self.step.is_some() {
            self.arrived.clear();
        }
        self.arrived.append(arrived);
        self.step = None;
        self.at = at;
        self.kind = StepKind::Decode;
        self.admitted.clear();
        self.preempted.clear();
        self.held.clear();
        self.rest_running = None;
        self.rest_waiting = None;
        self.rectangle.reset();
    }
}
