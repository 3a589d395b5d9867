//! The decision record of one `Core::schedule` call: arrivals, admissions, preemptions, deferrals,
//! pool usage and costs.
//!
//! `reset` keeps its memory, so that recording a step does not allocate. Arrivals accumulate until
//! a step is built.

use crate::rectangular::RectangleRecord;
use crate::{Costs, DeferReason, RequestId};
use kvasir_exec::StepKind;
use kvasir_kv::{PoolUsage, StepId};
use serde::{Deserialize, Serialize};

/// Nanoseconds on the caller's clock.
pub type Nanos = u64;

/// A request that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The request.
    pub request: RequestId,
    /// Cache-hit tokens.
    pub hit: u32,
}

/// A request that arrived since the previous step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The request.
    pub request: RequestId,
    /// Arrival number.
    pub number: u64,
    /// The caller's tag.
    pub tag: u64,
    /// Prompt tokens.
    pub prompt: u32,
    /// Most output tokens.
    pub max_tokens: u32,
}

/// A request that was considered and deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The request.
    pub request: RequestId,
    /// The reason.
    pub reason: DeferReason,
}

/// The decisions of one `schedule` call besides the step's batch and plan. Its memory is reused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, or none if nothing could run.
    pub step: Option<StepId>,
    /// When it was scheduled.
    pub at: Nanos,
    /// Prefill, decode or mixed.
    pub kind: StepKind,
    /// Requests that arrived since the last step was built, including refused ones.
    pub arrived: Vec<Arrival>,
    /// Admissions.
    pub admitted: Vec<Admission>,
    /// Preemptions.
    pub preempted: Vec<RequestId>,
    /// Deferred requests with individual reasons.
    pub held: Vec<Held>,
    /// Reason for all running requests that are neither in the step nor in `held`.
    pub rest_running: Option<DeferReason>,
    /// Reason for all waiting requests that are not in `held`.
    pub rest_waiting: Option<DeferReason>,
    /// Waiting requests after this call.
    pub waiting: u32,
    /// Running requests after this call, including those in the step.
    pub running: u32,
    /// KV pool usage after this call.
    pub room: PoolUsage,
    /// Slots reserved for running requests and not yet claimed.
    pub promised: u32,
    /// Measured step costs that the policy was given.
    pub costs: Costs,
    /// Decisions of the `rectangular` policy; empty under others.
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
