//! Scheduling policies: which prefill chunks and decode rows run in the next step. One policy per
//! file: `prefill_first`, `chunked`, `rectangular`; `room` holds what they share.

mod chunked;
mod prefill_first;
mod rectangular;
mod room;

pub use chunked::{Chunked, Mixing, StepTarget};
pub use prefill_first::{Chunking, PrefillFirst, prefill_chunk};
pub use rectangular::Rectangular;

use crate::{Desk, Limits, Refusal};
use serde::{Deserialize, Serialize};

/// When what a sequence has computed becomes findable by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PublishAt {
    /// As soon as a block is full.
    EveryBlock,
    /// When its prompt is computed, and when it leaves.
    Milestones,
}

/// Decides what runs in the next step.
///
/// A policy sees the world through a [`Desk`] and acts only through its verbs. It reads no clock, has no randomness and
/// keeps no ids: entries are valid within one call of [`Policy::schedule`]. It must not end a call without a row while
/// something could run, and it says why of everybody whom it leaves out.
pub trait Policy: Send {
    /// Its name in `--policy`.
    fn name(&self) -> &'static str;

    /// Picks the rows of the next step.
    fn schedule(&mut self, desk: &mut Desk<'_>);

    /// Refuses a request that it could never run. Length and capacity are checked already.
    fn accepts(&self, prompt_len: u32, limits: &Limits) -> Result<(), Refusal> {
        let _ = (prompt_len, limits);
        Ok(())
    }

    /// Whether it may feed tokens again that are there already, which takes a cache with a dummy block.
    fn redirects(&self) -> bool {
        false
    }
    /// When computed tokens become findable.
    fn publish_at(&self) -> PublishAt {
        PublishAt::EveryBlock
    }
}
