//! Reasons why a sequence was deferred in a step: recorded in `StepRecord`, written to traces and
//! shown by the viewer.
//!
//! Every policy must give a reason for each waiting or running sequence that it leaves out
//! (`tests/toy/reasons.rs`).

use serde::{Deserialize, Serialize};

/// Why a sequence was deferred in a step.
#[allow(missing_docs)] // the fields: KV slots or volume, needed and available
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeferReason {
    /// Head-of-line blocking: a request ahead of it in the queue must be admitted first.
    Behind,
    /// `max_num_seqs` sequences are running.
    SequenceLimit,
    /// The step's token budget is used up.
    TokenBudget,
    /// The KV cache lacks free slots.
    #[serde(rename = "no_room")]
    NoSlots { needed: u32, available: u32 },
    /// The KV cache has free slots, but they are reserved for running sequences or below the
    /// watermark.
    Reserved { needed: u32, available: u32 },
    /// The slots it needs are leased by a step in flight and come free when that retires.
    Lease { slots: u32 },
    /// The cache is at its sequence limit.
    CacheSequences,
    /// No executor row is free.
    NoPoolRow,
    /// No slot for a live recurrent state is free.
    NoStateSlot,
    /// Decodes are deferred by a prefill step.
    PrefillFirst,
    /// Admission is deferred by the delay factor.
    Delay,
    /// Admission is deferred by prefill coalescing.
    Coalesce,
    /// Its token in flight must reach the host first.
    TokenInFlight,
    /// Its token in flight is its last output.
    LastTokenInFlight,
    /// Its drafts are being verified.
    Verifying,
    /// A sibling is computing their shared prompt.
    Sibling,
    /// The token budget left is too small for a prefill chunk.
    #[serde(rename = "sliver")]
    ChunkTooSmall,
    /// It was preempted in this step.
    Preempted,
    /// The step would exceed its time target.
    CostTarget,
    /// Another prompt is in prefill, and only one may be.
    OnePrefill,
    /// The previous step was a prefill and a row is decoding: prefill and decode steps alternate.
    Interleave,
    /// The decode batch is full.
    DecodeBatch,
    /// Rows times the largest tkv would exceed the limit in a later step.
    Volume { projected: u64, limit: u64 },
    /// A row's remaining tokens would no longer fit `max_model_len`.
    ModelLength,
    /// Paused: not all decode rows fit the volume limit, and it is not its turn.
    Paused,
    /// Prefill is deferred while decode rows are paused.
    OthersPaused,
}

impl DeferReason {
    /// Whether a preemption, or the retirement of a step, can resolve it by freeing KV slots or a
    /// live state.
    pub fn lacks_slots(self) -> bool {
        matches!(self, Self::NoSlots { .. } | Self::Lease { .. } | Self::NoStateSlot)
    }
}
