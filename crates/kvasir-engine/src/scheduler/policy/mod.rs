//! Scheduling policies: which prefill chunks and decode rows run in the next step. One policy per
//! file or folder: `prefill_first`, `chunked`, `rectangular`. The first two share `decode_pass`.

pub(crate) mod chunked;
pub(crate) mod decode_pass;
pub(crate) mod prefill_first;
pub(crate) mod rectangular;

use crate::request::finish::Refusal;
use crate::request::sequence::Sequence;
use crate::scheduler::kv_manager::PublishAt;
use crate::scheduler::limits::Limits;
use crate::scheduler::view::SchedulerView;

/// A scheduling policy: decides what runs in the next step.
///
/// A policy reads and acts only through a [`SchedulerView`]. It reads no clock and has no
/// randomness. An entry names a sequence while that lives; a policy that keeps one across calls
/// must check its id with [`SchedulerView::find_running`]. A call must not end without a row while
/// something could run, and it must give a reason for every sequence that it leaves out.
pub trait Policy: Send {
    /// Its name in `--policy`.
    fn name(&self) -> &'static str;

    /// Schedules the rows of the next step. May be called again for the same step after an eviction
    /// or preemption.
    fn schedule(&mut self, view: &mut SchedulerView<'_>);

    /// Refuses a request that the policy could never run. Context length and KV capacity are
    /// checked by the core.
    fn accepts(&self, prompt_len: u32, limits: &Limits) -> Result<(), Refusal> {
        let _ = (prompt_len, limits);
        Ok(())
    }

    /// Length in tokens up to which the policy reserves slots for a sequence at admission;
    /// `capacity` is the pool size in slots.
    fn reserve_to(&self, sequence: &Sequence, capacity: u32) -> u32 {
        sequence.longest().min(capacity)
    }

    /// Whether it may recompute cached tokens with redirected writes, which needs a cache with a
    /// dummy block.
    fn redirects(&self) -> bool {
        false
    }

    /// Whether its steps are rectangles of KV blocks: a whole chunk of one prompt, or decode rows of
    /// equally many blocks, dummy blocks included.
    fn is_rectangular(&self) -> bool {
        false
    }

    /// Whether its decode rows may verify drafts.
    fn verifies_drafts(&self) -> bool {
        true
    }

    /// When computed blocks are published to the prefix cache.
    fn publish_at(&self) -> PublishAt {
        PublishAt::EveryBlock
    }
}
