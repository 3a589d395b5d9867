//! What the `rectangular` policy decided in one step, for traces and the viewer: tkv, batch shape,
//! chunk, pauses, projection.

use super::Projection;
use crate::RequestId;
use serde::{Deserialize, Serialize};

/// The chunk of a prompt that a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// Whose.
    pub request: RequestId,
    /// Its number.
    pub chunk: u32,
    /// Chunks of the prompt.
    pub chunks: u32,
    /// Dummy positions on the prompt's left.
    pub left: u32,
    /// Positions behind its last token in its last block.
    pub right: u32,
    /// First token of the chunk.
    pub from: u32,
    /// Token behind its last.
    pub to: u32,
    /// Tokens of it that are in the cache already and are computed again.
    pub redirected: u32,
}

/// A request's skipped prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Whose.
    pub request: RequestId,
    /// Tokens in chunks that were skipped because their blocks were there.
    pub tokens: u32,
}

/// What a rectangular policy decided in one step: the values behind the tkv lines, the volume bound and the padding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RectangleRecord {
    /// The tkv that the step reports: of a decode the largest, of a prefill as the rules have it.
    pub tkv: u32,
    /// Rows of the decode batch; 0 in a prefill step.
    pub rows: u32,
    /// Blocks of every row of the decode batch.
    pub width: u32,
    /// What rows times tkv may not exceed.
    pub limit: u64,
    /// The chunk that the step runs.
    pub chunk: Option<ChunkRecord>,
    /// Whose admission to the decode batch was tested last in this step, and what the test saw in `projection`.
    pub projected: Option<RequestId>,
    /// What was projected for it.
    #[serde(skip)]
    pub projection: Projection,
    /// Running requests in the policy's order, those in the step included, the paused not.
    pub running: Vec<RequestId>,
    /// Paused requests in order.
    pub paused: Vec<RequestId>,
    /// What running and paused requests skipped.
    pub skipped: Vec<Skipped>,
    /// Requests that became paused so far; a swap within one step counts nothing.
    pub pause_events: u64,
    /// Requests that were resumed so far.
    pub resume_events: u64,
}

impl RectangleRecord {
    /// Whether no rectangular policy wrote it.
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
