//! Fault-injecting KV cache: a wrapper that refuses sequences, claims or reservations on demand, or
//! makes every plan stale.

use kvasir_kv::*;

/// The cache operations that can be refused for lack of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Sequence,
    Claim,
    Preallocate,
}

/// A cache wrapper that sometimes claims to be full.
pub(crate) struct Flaky {
    pub(crate) inner: Box<dyn Cache>,
    /// Called for each such operation; true refuses it.
    pub(crate) refuses: Box<dyn FnMut(Operation) -> bool + Send>,
    /// Makes every plan stale immediately.
    pub(crate) stale: bool,
}

impl Flaky {
    pub(crate) fn new(
        inner: Box<dyn Cache>,
        refuses: impl FnMut(Operation) -> bool + Send + 'static,
    ) -> Self {
        Self { inner, refuses: Box::new(refuses), stale: false }
    }
}

impl Cache for Flaky {
    fn shape(&self) -> &CacheShape {
        self.inner.shape()
    }
    fn usage(&self) -> PoolUsage {
        self.inner.usage()
    }
    fn generation(&self) -> u64 {
        self.inner.generation() + u64::from(self.stale)
    }
    fn open(&mut self) -> Result<SeqId, CacheError> {
        if (self.refuses)(Operation::Sequence) {
            Err(CacheError::TooManySequences)
        } else {
            self.inner.open()
        }
    }
    fn usage_of(&self, group: GroupId) -> PoolUsage {
        self.inner.usage_of(group)
    }
    fn mark_checkpoints(&mut self, seq: SeqId, positions: &[Position]) -> Result<(), CacheError> {
        self.inner.mark_checkpoints(seq, positions)
    }
    fn set_recompute_costs(&mut self, costs: RecomputeCosts) {
        self.inner.set_recompute_costs(costs);
    }
    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.inner.close(seq)
    }
    fn preallocate_slots(&mut self, seq: SeqId, upto: u32) -> Result<u32, CacheError> {
        if upto > 0 && (self.refuses)(Operation::Preallocate) {
            Err(CacheError::Full { group: GroupId::FULL, needed: 1, available: 0 })
        } else {
            self.inner.preallocate_slots(seq, upto)
        }
    }
    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.inner.len(seq)
    }
    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.inner.claimed_len(seq)
    }
    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.inner.next_position(seq)
    }
    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        if (self.refuses)(Operation::Claim) {
            let group = step.0 as usize % self.inner.shape().groups.iter().count();
            Err(CacheError::Full { group: GroupId(group as u8), needed: 1, available: 0 })
        } else {
            self.inner.claim(step, rows)
        }
    }
    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        self.inner.plan(step, plan)
    }
    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.inner.retire(step)
    }
    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.inner.cancel(step)
    }
    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        self.inner.rewind()
    }
    fn sequences(&mut self) -> Result<&mut dyn Sequences, CacheError> {
        self.inner.sequences()
    }
    fn prefix(&mut self) -> Result<&mut dyn Prefix, CacheError> {
        self.inner.prefix()
    }
    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        self.inner.tree()
    }
}

impl Inspect for Flaky {
    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.inner.blocks_of(seq, into)
    }
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.inner.visit_blocks(blocks);
    }
    fn visit_blocks_of(&self, group: GroupId, blocks: &mut Vec<BlockUse>) {
        self.inner.visit_blocks_of(group, blocks);
    }
    fn check(&self) -> Result<(), String> {
        self.inner.check()
    }
}

impl MemoryHints for Flaky {
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        self.inner.reserve_memory(seq, tokens);
    }
    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        self.inner.reserve_plan_memory(blocks, rows);
    }
}

impl Victims for Flaky {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        self.inner.victims(search, victims)
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        self.inner.slots_held_by(sequences)
    }
}
