//! Trace format of one step: a compact delta record, one JSON object per step, read by the step
//! viewer.
//!
//! The viewer in `kvasir-view` knows the same keys: a new field must be added there, and files
//! without it must still load.

use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use kvasir_exec::StepKind;
use kvasir_kv::CacheEnd;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq};

/// Delta record of one `schedule` call and of the results that arrived before the next. Requests
/// are named by arrival number. The viewer knows the same keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepTrace {
    /// Step id.
    pub step: u64,
    /// When it was scheduled.
    pub at: Nanos,
    /// Prefill, decode or mixed.
    pub kind: StepKind,
    /// Arrivals: request number, prompt tokens, most output tokens, caller's tag.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arrived: Vec<(u64, u32, u32, u64)>,
    /// Admissions: request number, cache-hit tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub admitted: Vec<(u64, u32)>,
    /// Admissions with a short prefix hit: request number, tokens that matched cached K/V, reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub short_hits: Vec<(u64, u32, CacheEnd)>,
    /// K/V tokens of requests that were running when the trace began: request number, tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub computed: Vec<(u64, u32)>,
    /// Preempted request numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preempted: Vec<u64>,
    /// Rows: request number, phase (0 prefill, 1 decode), position of the first token fed, tokens
    /// fed, how many of them have redirected writes, left padding blocks, drafts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<(u64, u8, u32, u32, u32, u32, u32)>,
    /// Rows that decode one more token with unchanged padding, as runs of (first request number,
    /// count).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<(u64, u32)>,
    /// Draft trees of rows: request number, parent node of each draft. Node 0 is the newest committed
    /// token, draft `i` is node `i + 1`. A chain is a tree.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drafts: Vec<(u64, Vec<u32>)>,
    /// Verified draft trees, of this step or of an earlier one: request number, accepted nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<(u64, Vec<u32>)>,
    /// Block-table changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableChange>,
    /// Deferred requests with individual reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<(u64, DeferReason)>,
    /// Reason for all other waiting requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_waiting: Option<DeferReason>,
    /// Reason for all other running requests that are not in the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_running: Option<DeferReason>,
    /// Requests that emitted one token, as runs of (first request number, count).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spoke: Vec<(u64, u32)>,
    /// Requests that emitted several tokens: request number, new tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<(u64, u32)>,
    /// Finished requests with their finish reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<(u64, crate::request::finish::Finish)>,
    /// Retired steps with their device time in nanoseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<(u64, Nanos)>,
    /// Retired steps with the number of tokens of each data-parallel replica, if the replicas run
    /// in lockstep. A replica with 0 tokens ran a dummy step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub num_tokens_across_dp: Vec<(u64, Vec<u32>)>,
    /// Failed steps with their errors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<(u64, String)>,
    /// Block usage changes: first block, count, usage (0 free, 1 cached, 2 held, 3 leased, 4
    /// dummy).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub map: Vec<(u32, u32, u8)>,
    /// KV pool usage after scheduling: free, evictable, held, leased slots.
    pub room: (u32, u32, u32, u32),
    /// Slots reserved for running requests and not yet claimed.
    #[serde(rename = "promised", skip_serializing_if = "is_zero")]
    pub reserved: u32,
    /// The tkv reported by the `rectangular` policy.
    #[serde(skip_serializing_if = "is_zero")]
    pub tkv: u32,
    /// Latest volume test of the `rectangular` policy: request number, its projected end length,
    /// and those of the decoding rows in ascending order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection: Option<(u64, u64, Vec<u64>)>,
    /// Prompt tokens in skipped (cached) chunks under the `rectangular` policy: request number,
    /// tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<(u64, u32)>,
    /// Step costs in nanoseconds: first decode row, each further row, a prompt's first token, and
    /// the increase per 1,000 positions of depth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<(u64, u64, u64, u64)>,
    /// Waiting requests.
    pub waiting: u32,
    /// Running requests.
    pub running: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Block-table delta of one request: keep the first `keep` blocks, then append `runs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    /// The request's number.
    pub request: u64,
    /// Blocks kept.
    pub keep: u32,
    /// Blocks after those, as runs of (first block, count).
    pub runs: Vec<(u32, u32)>,
}

/// `[request, keep, [first, count], ..]`; a run of one block is written as the block alone.
impl Serialize for TableChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(2 + self.runs.len()))?;
        list.serialize_element(&self.request)?;
        list.serialize_element(&self.keep)?;
        for run in &self.runs {
            match run.1 {
                1 => list.serialize_element(&run.0)?,
                _ => list.serialize_element(run)?,
            }
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for TableChange {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Item {
            One(u64),
            Run(u32, u32),
        }
        let bad = || serde::de::Error::custom("a table is [request, keep, block or [first, count], ..]");
        let mut items = Vec::<Item>::deserialize(deserializer)?.into_iter();
        let (Some(Item::One(request)), Some(Item::One(keep))) = (items.next(), items.next()) else {
            return Err(bad());
        };
        let run = |item| match item {
            Item::One(block) => u32::try_from(block).map(|block| (block, 1)).map_err(|_| bad()),
            Item::Run(first, count) => Ok((first, count)),
        };
        let keep = u32::try_from(keep).map_err(|_| bad())?;
        Ok(Self { request, keep, runs: items.map(run).collect::<Result<_, _>>()? })
    }
}
