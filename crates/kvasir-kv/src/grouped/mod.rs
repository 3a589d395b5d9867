//! `Grouped`: the cache of a hybrid model. Combines a K/V cache with a pool of recurrent states.
//!
//! The *primary* cache, of any kind, allocates the K/V slots of group 0 and decides lengths, fork
//! families and prefix matches. `StateGroup` manages the states. An operation runs in three parts,
//! so that it never succeeds in one group and fails in the other:
//!
//! 1. Check the preconditions on states.
//! 2. Call the primary cache, which may refuse; nothing has changed then.
//! 3. Update the states, which cannot fail.
//!
//! Recurrent states restrict the operations:
//!
//! - A sequence can be truncated, copied or forked only at a position that has a state; see
//!   `rewind_floor`.
//! - A checkpoint at the end of a published block is linked to the *anchor* of the block. A prefix
//!   hit ends at the last matched block with a checkpoint.
//! - `attach` marks the length that the primary matched, where two prompts diverge. The next prompt
//!   that diverges there finds a checkpoint.
//!
//! Unsupported: draft trees, imported rows, rings and shared prefixes.
//!
//! `build` creates one for `CacheConfig::states`. Guarded by `tests/states/` and by
//! `kvasir-engine/tests/toy`.

mod capabilities;
pub(crate) mod states;

use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Hit, Prefix, Rewind, Sequences};
use crate::contract::error::CacheError;
use crate::contract::group::{Anchor, GroupId, Groups, RecomputeCosts, StateConfig};
use crate::contract::ids::{Position, SeqId, StepId, Token};
use crate::contract::plan::Plan;
use crate::contract::usage::PoolUsage;
use crate::grouped::states::group::StateGroup;

/// A primary cache and the recurrent states of its sequences.
pub(crate) struct Grouped {
    primary: Box<dyn Cache>,
    shape: CacheShape,
    states: StateGroup,
    /// Anchors of the newest lookup; scratch memory.
    anchors: Vec<Anchor>,
}

impl Grouped {
    /// Adds recurrent states to `primary`, a cache without sequences.
    pub(crate) fn new(mut primary: Box<dyn Cache>, config: StateConfig) -> Result<Self, CacheError> {
        if config.live == 0 {
            return Err(CacheError::BadConfig("a model with recurrent layers needs at least one live state"));
        }
        if config.live.checked_add(config.checkpoints).is_none() {
            return Err(CacheError::BadConfig("the number of live states and checkpoints exceeds 2^32 - 1"));
        }
        let groups = Groups::with_states();
        let group = groups.states().unwrap_or_default();
        let shape = CacheShape { groups, states: Some(config), ..primary.shape().clone() };
        let states = StateGroup::new(group, config, shape.block_size);
        if let Some(anchors) = primary.anchors() {
            anchors.record_unpublished();
        }
        Ok(Self { primary, shape, states, anchors: Vec::new() })
    }

    /// Unlinks the checkpoints of evicted blocks. The primary may reuse their anchors, so this
    /// precedes every other use of anchors.
    fn unlink_evicted(&mut self) {
        self.anchors.clear();
        if let Some(anchors) = self.primary.anchors() {
            anchors.take_unpublished(&mut self.anchors);
        }
        self.states.unlink(&self.anchors);
    }

    /// Looks up a prompt in the primary cache; leaves the anchors of its blocks in `self.anchors`.
    fn match_prompt(&mut self, tokens: &[Token], salt: u64) -> Result<Hit, CacheError> {
        self.unlink_evicted();
        self.anchors.clear();
        let matched = self.primary.prefix()?.lookup(tokens, salt);
        if let Some(anchors) = self.primary.anchors() {
            anchors.matched(&mut self.anchors);
        }
        Ok(matched)
    }
}

impl Cache for Grouped {
    fn shape(&self) -> &CacheShape {
        &self.shape
    }

    fn usage(&self) -> PoolUsage {
        self.primary.usage()
    }

    fn usage_of(&self, group: GroupId) -> PoolUsage {
        if Some(group) == self.shape.groups.states() {
            self.states.usage()
        } else {
            self.primary.usage_of(group)
        }
    }

    fn mark_checkpoints(&mut self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        self.states.mark(seq, positions)
    }

    fn set_recompute_costs(&mut self, costs: RecomputeCosts) {
        self.states.set_recompute_costs(costs);
    }

    fn generation(&self) -> u64 {
        self.primary.generation()
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        self.primary.open().inspect(|&seq| self.states.open(seq))
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.primary.close(seq)?;
        self.states.close(seq);
        Ok(())
    }

    fn preallocate_slots(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        self.primary.preallocate_slots(seq, upto)
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.primary.len(seq)
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.primary.claimed_len(seq)
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.primary.next_position(seq)
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        self.unlink_evicted();
        self.states.check_claim(rows)?;
        self.primary.claim(step, rows)?;
        self.states.claim(step, rows);
        Ok(())
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        self.primary.plan(step, plan)?;
        self.states.plan(step, &mut plan.states);
        Ok(())
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.primary.retire(step)?;
        self.states.retire(step);
        Ok(())
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.primary.cancel(step)?;
        self.states.cancel(step);
        Ok(())
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        self.primary.rewind()?;
        Ok(self)
    }

    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        self.primary.sequences()?;
        Ok(self)
    }

    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        self.primary.prefix()?;
        Ok(self)
    }
}
