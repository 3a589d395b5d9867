//! The [`Drafter`] trait: a proposer that runs on the host, between steps.

use crate::request::ids::RequestId;
use crate::request::proposal::Proposal;
use crate::request::sequence::Sequence;

/// Proposes tokens that the target model verifies in one step.
///
/// Draft models run in the executor instead, and return their proposals with a step's output.
pub trait Drafter: Send {
    /// Most tokens per proposal; every decode row reserves space for as many.
    fn width(&self) -> u32;
    /// Whether proposals are trees, which needs a cache with tree support.
    fn proposes_trees(&self) -> bool;
    /// A step has ended; the proposals for its sequences follow.
    fn begin_step(&mut self) {}
    /// Writes draft tokens that continue `sequence`. `proposal` arrives empty; leaving it empty
    /// means no drafts.
    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal);
    /// Drops the state of requests that have ended; `lives` tells whether one has not. Called now and
    /// then.
    fn retain(&mut self, lives: &dyn Fn(RequestId) -> bool) {
        let _ = lives;
    }
}
