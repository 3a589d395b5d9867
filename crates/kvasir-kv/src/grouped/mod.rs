//! `Grouped`: a cache of K/V with a pool of recurrent states beside it.
//!
//! The *primary* cache, of any kind, has the slots of group 0 and decides lengths, families and
//! prefixes. `StateGroup` has the states. Each verb first checks what depends on states, then calls
//! the primary, which may refuse and changes nothing then, then performs the part of the states,
//! which cannot fail. So no verb succeeds in one group and fails in the other.
//!
//! - A sequence can be truncated, copied and forked only where there is a state: `rewind_floor`.
//! - A checkpoint at the end of a published block is found through it: its *anchor*. A prefix hit
//!   ends at the last block that has one.
//! - `attach` marks the length that the primary matched, where two prompts part, so that the next
//!   prompt that parts there finds a checkpoint.
//!
//! Refused: draft trees, imported rows, rings and shared prefixes.
//!
//! `build` makes one for `CacheConfig::states`. The engine does not set that yet: decision 0046
//! lists the steps that do. Guarded by `tests/states/`.

mod capabilities;
pub(crate) mod states;

use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Hit, Prefix, Rewind, Sequences};
use crate::contract::error::CacheError;
use crate::contract::group::{Anchor, GroupId, Groups, StateConfig, StateCosts};
use crate::contract::ids::{Position, SeqId, StepId, Token};
use crate::contract::plan::Plan;
use crate::contract::usage::PoolUsage;
use crate::grouped::states::group::StateGroup;

/// A primary cache, and the recurrent states of its sequences.
pub(crate) struct Grouped {
    primary: Box<dyn Cache>,
    shape: CacheShape,
    states: StateGroup,
    /// Scratch memory.
    anchors: Vec<Anchor>,
}

impl Grouped {
    /// Puts states beside a new cache.
    pub(crate) fn new(mut primary: Box<dyn Cache>, config: StateConfig) -> Result<Self, CacheError> {
        if config.live == 0 {
            return Err(CacheError::BadConfig("a recurrent model needs at least one live state"));
        }
        if config.live.checked_add(config.checkpoints).is_none() {
            return Err(CacheError::BadConfig("the cache has more states than a slot number can name"));
        }
        let groups = Groups::with_states();
        let group = groups.states().unwrap_or_default();
        let shape = CacheShape { groups, ..primary.shape().clone() };
        let states = StateGroup::new(group, config, shape.block_size);
        if let Some(anchors) = primary.anchors() {
            anchors.record_unpublished();
        }
        Ok(Self { primary, shape, states, anchors: Vec::new() })
    }

    /// Unlinks the checkpoints of blocks that were evicted. Their slots and anchors may be used
    /// again, so this comes before any other use of either.
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
            anchors.found(&mut self.anchors);
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

    fn mark(&mut self, seq: SeqId, at: &[Position]) -> Result<(), CacheError> {
        self.states.mark(seq, at)
    }

    fn set_costs(&mut self, costs: StateCosts) {
        self.states.set_costs(costs);
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
