//! Reasons why a sequence was deferred in a step: recorded in `StepRecord`, written to traces and
//! shown by the viewer.
//!
//! Every policy must give a reason for each waiting or running sequence that it leaves out
//! (`tests/toy/reasons.rs`).

use serde::{Deserialize, Serialize};

/// Why a sequence is not run in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Somebody ahead of it in the queue must go first.
    Behind,
    /// As many sequences run as may.
    SequenceLimit,
    /// The step holds as many tokens as it may.
    TokenBudget,
    /// The cache has no room for it now.
    NoRoom {
        /// Slots needed.
        needed: u32,
        /// Slots that could be had.
        available: u32,
    },
    /// The cache has room, but it is kept free or promised to those who run.
    Reserved {
        /// Slots needed.
        needed: u32,
        /// Slots that nobody was promised.
        available: u32,
    },
    /// Room comes back as soon as the step in flight has retired.
    Lease {
        /// Slots on their way.
        slots: u32,
    },
    /// The cache holds as many sequences as it can.
    CacheSequences,
    /// No place in the token pool is free.
    NoPoolRow,
    /// No place for its state is free.
    NoStateSlot,
    /// Decodes wait while prompts go first.
    PrefillFirst,
    /// Prompts wait while decodes go first.
    DecodeFirst,
    /// Newcomers wait for the delay factor.
    Delay,
    /// Newcomers wait so that all replicas prefill together.
    Coalesce,
    /// It must see its token in flight first.
    TokenInFlight,
    /// Its token in flight is its last one.
    LastTokenInFlight,
    /// Its drafts are being verified.
    Verifying,
    /// A sibling computes their common prompt first.
    Sibling,
    /// What is left of the budget is too small a chunk.
    Sliver,
    /// It was preempted in this step.
    Preempted,
    /// The step would take longer than its cost target.
    CostTarget,
    /// Another prompt is being prefilled, and only one may be at a time.
    OnePrefill,
    /// The step before was a prefill and somebody decodes: prefills and decodes take turns.
    Interleave,
    /// The decode batch has as many rows as it may.
    DecodeBatch,
    /// Rows times largest tkv would exceed the limit in some later step.
    Volume {
        /// What it would come to.
        projected: u64,
        /// What it may be.
        limit: u64,
    },
    /// Somebody's remaining tokens would not fit in front of the model's length any more.
    ModelLength,
    /// It is paused: not all who decode fit the volume limit, and it is not its turn.
    Paused,
    /// Nobody is prefilled while others are paused.
    OthersPaused,
}
