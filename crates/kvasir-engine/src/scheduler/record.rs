//! The decision record of one `Core::schedule` call: arrivals, admissions, preemptions, deferrals,
//! pool usage and costs.

use crate::request::ids::RequestId;
use crate::request::prefix_match::PrefixMatch;
use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::limits::Costs;
use kvasir_exec::StepKind;
use kvasir_kv::{PoolUsage, StepId};
use serde::{Deserialize, Serialize};

/// A request that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// The request.
    pub request: RequestId,
    /// Cache-hit tokens.
    pub hit: u32,
    /// How many of its tokens matched cached K/V, and why the match ended there.
    #[serde(default)]
    pub prefix: PrefixMatch,
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
pub struct Deferral {
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
    /// Context shifts since the previous call: these requests lost their K/V, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shifted: Vec<RequestId>,
    /// Deferred requests with individual reasons.
    pub deferred: Vec<Deferral>,
    /// Reason for all running requests that are neither in the step nor in `deferred`.
    pub rest_running: Option<DeferReason>,
    /// Reason for all waiting requests that are not in `deferred`.
    pub rest_waiting: Option<DeferReason>,
    /// Waiting requests after this call.
    pub waiting: u32,
    /// Running requests after this call, including those in the step.
    pub running: u32,
    /// KV pool usage after this call.
    pub usage: PoolUsage,
    /// Slots reserved for running requests and not yet claimed.
    #[serde(rename = "promised")]
    pub reserved: u32,
    /// Measured step costs that the policy was given.
    pub costs: Costs,
    /// Decisions of the `rectangular` policy; empty under others.
    #[serde(default, skip_serializing_if = "RectangleRecord::is_empty")]
    pub rectangle: RectangleRecord,
}

impl StepRecord {
    /// Begins a call of `schedule`. `arrived` are the requests that arrived since the last one;
    /// they accumulate until a step is built. `shifted` had a context shift. Keeps its memory, so that recording a step does not
    /// allocate.
    pub(crate) fn begin(
        &mut self,
        at: Nanos,
        costs: Costs,
        arrived: &mut Vec<Arrival>,
        shifted: &mut Vec<RequestId>,
    ) {
        if self.step.is_some() {
            self.arrived.clear();
        }
        self.arrived.append(arrived);
        self.step = None;
        self.at = at;
        self.kind = StepKind::Decode;
        self.admitted.clear();
        self.preempted.clear();
        self.shifted.clear();
        self.shifted.append(shifted);
        self.rest_running = None;
        self.rest_waiting = None;
        self.costs = costs;
        self.begin_attempt();
    }

    /// Begins an attempt of the call: deferrals of an earlier attempt are dropped.
    pub(crate) fn begin_attempt(&mut self) {
        self.deferred.clear();
        self.rectangle.reset();
    }
}

/// The prefill chunk of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// Its request.
    pub request: RequestId,
    /// Chunk number.
    pub chunk: u32,
    /// Number of chunks of the prompt.
    pub chunks: u32,
    /// Left padding in positions.
    pub left: u32,
    /// Right padding in positions.
    pub right: u32,
    /// First token of the chunk.
    pub from: u32,
    /// End of its token range, exclusive.
    pub to: u32,
    /// Cached tokens that it recomputes.
    pub redirected: u32,
}

/// Prefill skipped by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedPrefill {
    /// The request.
    pub request: RequestId,
    /// Tokens in chunks skipped because all their blocks were cached.
    pub tokens: u32,
}

/// Decisions of the `rectangular` policy in one step: tkv, batch shape, volume limit, pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RectangleRecord {
    /// Reported tkv: the largest of a decode batch; for a prefill as the rule set defines it.
    pub tkv: u32,
    /// Rows of the decode batch; 0 in a prefill step.
    pub rows: u32,
    /// Blocks per row of the decode batch.
    pub width: u32,
    /// Volume limit. 0 means that no rectangular policy wrote the record.
    pub limit: u64,
    /// Prefill chunk of the step.
    pub chunk: Option<ChunkRecord>,
    /// The request whose volume test ran last in this step.
    pub projected: Option<RequestId>,
    /// The projection of that test.
    #[serde(skip)]
    pub projection: Projection,
    /// Running requests in row order, including those in the step, without paused ones.
    pub running: Vec<RequestId>,
    /// Paused requests in order of rotation.
    pub paused: Vec<RequestId>,
    /// SkippedPrefill prefill of running and paused requests.
    pub skipped: Vec<SkippedPrefill>,
    /// Net number of pauses so far; a swap within one step counts as none.
    pub pause_events: u64,
    /// Net number of resumes so far.
    pub resume_events: u64,
}

/// Worst-case end lengths of the decode batch with a new row: all rows use all their outputs, and
/// padding costs each one more block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Projection {
    /// End length of the new row.
    pub own_end: u64,
    /// End lengths of the decoding rows, ascending.
    pub ends: Vec<u64>,
}

impl RectangleRecord {
    /// Whether the record is unused: another policy is active.
    pub fn is_empty(&self) -> bool {
        self.limit == 0
    }

    /// Rows times tkv of the decode batch.
    pub fn volume(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.tkv)
    }

    fn reset(&mut self) {
        self.tkv = 0;
        self.rows = 0;
        self.width = 0;
        self.chunk = None;
        self.projected = None;
        self.running.clear();
        self.paused.clear();
        self.skipped.clear();
    }
}
