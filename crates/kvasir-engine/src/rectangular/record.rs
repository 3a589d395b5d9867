//! What the `rectangular` policy decided in one step, for traces and the viewer: tkv, batch shape,
//! chunk, pauses, projection.

use super::Projection;
use crate::RequestId;
use serde::{Deserialize, Serialize};

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
pub struct Skipped {
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
    /// Skipped prefill of running and paused requests.
    pub skipped: Vec<Skipped>,
    /// Net number of pauses so far; a swap within one step counts as none.
    pub pause_events: u64,
    /// Net number of resumes so far.
    pub resume_events: u64,
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

    pub(crate) fn reset(&mut self) {
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
