//! `Grouped`: the cache of a model with several layer groups. Combines a K/V cache with pools for
//! sliding-window layers and a pool of recurrent states.
//!
//! The *primary* cache, of any kind, allocates the K/V slots of group 0 and decides lengths, fork
//! families and prefix matches. A `WindowGroup` manages the slots of a window, `StateGroup` the
//! states. An operation runs in three parts, so that it never succeeds in one group and fails in
//! another:
//!
//! 1. Check the preconditions on windows and states.
//! 2. Call the primary cache, which may refuse; nothing has changed then.
//! 3. Update the windows and states, which cannot fail.
//!
//! Windows and states restrict the operations:
//!
//! - A sequence can be truncated, copied or forked only at a position that has a state and whose
//!   windows still hold their rows; see `rewind_floor`.
//! - Window blocks and checkpoints are linked to the *anchors* of the primary's published blocks. A
//!   prefix hit ends at the last matched block at which every group can continue.
//! - `attach` marks the length that the primary matched, where two prompts diverge. The next prompt
//!   that diverges there finds a checkpoint, and the rows of the windows if the engine publishes
//!   the sequence before they are released.
//!
//! Unsupported: draft trees, imported rows and rings; window groups behind a shared prefix.
//! `contiguous` and `tree` have no window groups: their sliding-window layers join the full group.
//!
//! `build` creates one for `CacheConfig::windows` and `CacheConfig::states`. Guarded by
//! `tests/windows/`, `tests/states/` and `kvasir-engine/tests/toy`.

mod capabilities;
mod groups;
pub(crate) mod states;
mod window_group;

use crate::blocks::BlockConfig;
use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Prefix, Rewind, Sequences};
use crate::contract::error::CacheError;
use crate::contract::frozen_rows::FrozenRows;
use crate::contract::group::{Anchor, GroupId, Groups, RecomputeCosts, StateConfig, WindowConfig};
use crate::contract::ids::{Position, SeqId, StepId};
use crate::contract::plan::Plan;
use crate::contract::section::Section;
use crate::contract::usage::PoolUsage;
use crate::grouped::states::group::StateGroup;
use crate::grouped::window_group::WindowGroup;

/// Configuration of the groups besides the primary cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupsConfig<'a> {
    /// The window groups, from narrow to wide.
    pub(crate) windows: &'a [WindowConfig],
    /// Block size and limits of the primary cache, which the window groups share.
    pub(crate) blocks: BlockConfig,
    pub(crate) states: Option<StateConfig>,
}

/// A primary cache, and the window rows and recurrent states of its sequences.
pub(crate) struct Grouped {
    primary: Box<dyn Cache>,
    shape: CacheShape,
    windows: Vec<WindowGroup>,
    states: Option<StateGroup>,
    /// Anchors of the newest lookup; scratch memory.
    anchors: Vec<Anchor>,
}

impl Grouped {
    /// Adds groups to `primary`, a cache without sequences.
    pub(crate) fn new(mut primary: Box<dyn Cache>, config: GroupsConfig<'_>) -> Result<Self, CacheError> {
        let GroupsConfig { windows: configs, blocks, states } = config;
        let groups = Groups::new(configs, states.is_some());
        if configs.len() > Groups::MAX_WINDOWS {
            return Err(CacheError::BadConfig("a cache has at most two window groups"));
        }
        if !configs.is_sorted_by(|narrow, wide| narrow.window < wide.window) {
            return Err(CacheError::BadConfig(
                "window groups must have different windows, from narrow to wide",
            ));
        }
        if !configs.is_empty() && primary.shape().kind.holds_one_sequence() {
            return Err(CacheError::BadConfig(
                "a cache of one sequence has no window groups: its sliding-window layers join the full group",
            ));
        }
        let window_groups = groups.iter().skip(1).zip(configs);
        let windows = window_groups.map(|((group, _), config)| WindowGroup::new(group, *config, blocks));
        let windows = windows.collect::<Result<Vec<_>, _>>()?;
        let block_size = primary.shape().block_size;
        let state_group = groups.states().zip(states);
        let state_group = state_group.map(|(group, config)| StateGroup::new(group, config, block_size));
        let shape = CacheShape { groups, windows: configs.to_vec(), states, ..primary.shape().clone() };
        let states = state_group.transpose()?;
        if let Some(anchors) = primary.anchors() {
            anchors.record_unpublished();
        }
        Ok(Self { primary, shape, windows, states, anchors: Vec::new() })
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
        match (self.window(group), &self.states) {
            (Some(window), _) => window.usage(),
            (None, Some(states)) if Some(group) == self.shape.groups.states() => states.usage(),
            _ => self.primary.usage_of(group),
        }
    }

    fn mark_checkpoints(&mut self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        self.primary.mark_checkpoints(seq, positions)?;
        self.windows.iter_mut().for_each(|window| window.mark(seq, positions));
        self.states.as_mut().map_or(Ok(()), |states| states.mark(seq, positions))
    }

    fn set_recompute_costs(&mut self, costs: RecomputeCosts) {
        if let Some(states) = &mut self.states {
            states.set_recompute_costs(costs);
        }
    }

    fn generation(&self) -> u64 {
        self.primary.generation()
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        let seq = self.primary.open()?;
        for window in &mut self.windows {
            let opened = window.open()?;
            debug_assert_eq!(opened, seq);
        }
        if let Some(states) = &mut self.states {
            states.open(seq);
        }
        Ok(seq)
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.primary.close(seq)?;
        if let Some(states) = &mut self.states {
            states.close(seq);
        }
        self.windows.iter_mut().try_for_each(|window| window.close(seq))
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
        if let Some(states) = &self.states {
            states.check_claim(rows)?;
        }
        self.windows.iter_mut().try_for_each(|window| window.check_claim(step, rows))?;
        self.primary.claim(step, rows)?;
        self.unlink_evicted();
        if let Some(states) = &mut self.states {
            states.claim(step, rows);
        }
        self.windows.iter_mut().try_for_each(|window| window.claim(step, rows))
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let mut sections = std::mem::take(&mut plan.windows);
        self.primary.plan(step, plan)?;
        sections.resize_with(self.windows.len(), Section::default);
        let mut windows = self.windows.iter_mut().zip(&mut sections);
        if let Err(error) = windows.try_for_each(|(window, section)| window.plan(step, section)) {
            *plan = Plan::default();
            return Err(error);
        }
        plan.windows = sections;
        if let Some(states) = &self.states {
            states.plan(step, &mut plan.states);
        }
        Ok(())
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.primary.retire(step)?;
        if let Some(states) = &mut self.states {
            states.retire(step);
        }
        self.windows.iter_mut().try_for_each(|window| window.retire(step))
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.primary.cancel(step)?;
        if let Some(states) = &mut self.states {
            states.cancel(step);
        }
        self.windows.iter_mut().try_for_each(|window| window.cancel(step))
    }

    fn rows_to_freeze(&self) -> Result<FrozenRows, CacheError> {
        let rows = self.primary.rows_to_freeze()?;
        let states = self.states.as_ref().map_or_else(Vec::new, StateGroup::checkpoints);
        Ok(FrozenRows { states, ..rows })
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
