//! Trace format of one step: a compact delta record, one JSON object per step, read by the step
//! viewer.
//!
//! The viewer in `kvasir-view` knows the same keys: a new field must be added there, and files
//! without it must still load.

use crate::{Nanos, Reason};
use kvasir_exec::StepKind;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeSeq};

/// What one call of `schedule` decided, and what came back before the next: the changes only. Requests are named by
/// their number in the order of arrival. The page that draws it knows the same keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepTrace {
    /// The step.
    pub step: u64,
    /// When it was scheduled.
    pub at: Nanos,
    /// What it consists of.
    pub kind: StepKind,
    /// Number, prompt, most outputs, the caller's tag.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arrived: Vec<(u64, u32, u32, u64)>,
    /// Number and tokens found in the cache.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub admitted: Vec<(u64, u32)>,
    /// Tokens that were there already, for requests that ran before the trace began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub computed: Vec<(u64, u32)>,
    /// Who went back to the queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preempted: Vec<u64>,
    /// Number, 0 prefill or 1 decode, first token fed, tokens fed, those of them whose writes are redirected, dummy blocks
    /// on the left, drafts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<(u64, u8, u32, u32, u32, u32, u32)>,
    /// Who decodes one more token like the last time, with the same padding: runs of a first number and a count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<(u64, u32)>,
    /// Changes of who owns which blocks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableChange>,
    /// Who was looked at and not run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<(u64, Reason)>,
    /// Why everybody else who waits does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_waiting: Option<Reason>,
    /// Why everybody else who runs is not in the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_running: Option<Reason>,
    /// Of whom the host has seen one new token: runs of a first number and a count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spoke: Vec<(u64, u32)>,
    /// Number and new tokens that the host has seen, of others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<(u64, u32)>,
    /// Who ended, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<(u64, crate::Finish)>,
    /// Steps that came back, with their time on the device.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<(u64, Nanos)>,
    /// Steps that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<(u64, String)>,
    /// Changes of what blocks are used for: first block, blocks, 0 free, 1 cached, 2 held, 3 leased, 4 dummy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub map: Vec<(u32, u32, u8)>,
    /// Slots that are free, evictable, held and leased after scheduling.
    pub room: (u32, u32, u32, u32),
    /// Slots promised to running requests and not taken yet.
    #[serde(skip_serializing_if = "is_zero")]
    pub promised: u32,
    /// The tkv that a rectangular policy reports.
    #[serde(skip_serializing_if = "is_zero")]
    pub tkv: u32,
    /// Whose admission to the decode batch was tested last, the length at which it would end, and those at which the others
    /// would, the shortest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection: Option<(u64, u64, Vec<u64>)>,
    /// Tokens of prompts, by number, whose chunks a rectangular policy skipped because they were cached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<(u64, u32)>,
    /// What the policy was told that steps cost: first row, further rows, a prompt's first token, a thousand positions before it, in
    /// nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<(u64, u64, u64, u64)>,
    /// How many wait.
    pub waiting: u32,
    /// How many run.
    pub running: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The blocks of one request: so many of the old ones are kept, then these follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableChange {
    /// The request's number.
    pub request: u64,
    /// Blocks kept.
    pub keep: u32,
    /// Blocks after them, as runs of a first block and a count.
    pub runs: Vec<(u32, u32)>,
}

/// `[request, keep, [first, count], ..]`; a run of one is written as the block alone.
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
