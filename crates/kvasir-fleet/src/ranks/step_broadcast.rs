//! [`StepBroadcast`]: the [`RankControl`] of rank 0 with `--rank-control steps`.
//!
//! It broadcasts each bind, release and step through the step ring; other ranks read them in
//! `RankProcess::follow`.

use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::member::Member;
use crate::ranks::ring_error::RingError;
use crate::ranks::step_words::encode;
use kvasir_exec::{PoolRow, RankControl, Step, StepError};
use kvasir_kv::{GroupId, Slot};
use std::{ops::Range, sync::Arc};

/// Index of the step ring.
pub(crate) const STEP_RING: usize = 0;

/// Record kinds of the step ring.
pub(crate) mod record {
    /// Words: pool row, final length.
    pub(crate) const BIND: u32 = 1;
    /// Words: layer group, start and end of each range of slots.
    pub(crate) const RELEASE: u32 = 2;
    /// An encoded step.
    pub(crate) const STEP: u32 = 3;
}

/// Broadcasts the binds, releases and steps of rank 0.
pub struct StepBroadcast {
    member: Arc<Member>,
    ring: BroadcastRing,
    words: Vec<u32>,
}

impl StepBroadcast {
    /// The control of rank 0. `member` must be rank 0; a group must have one control.
    pub fn new(member: Arc<Member>) -> Self {
        Self { member, ring: BroadcastRing::new(STEP_RING), words: Vec::new() }
    }

    fn write(&mut self, kind: u32) -> Result<(), StepError> {
        let written = self.ring.write(&self.member.endpoint, kind, &self.words);
        written.map_err(|error: RingError| self.member.step_error(&error))
    }
}

impl RankControl for StepBroadcast {
    fn bind(&mut self, row: PoolRow, final_len: u32) -> Result<(), StepError> {
        self.words.clear();
        self.words.extend([row.0, final_len]);
        self.write(record::BIND)
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) -> Result<(), StepError> {
        self.words.clear();
        self.words.push(group.0.into());
        self.words.extend(slots.iter().flat_map(|range| [range.start, range.end]));
        self.write(record::RELEASE)
    }

    fn begin_step(&mut self, step: &Step) -> Result<(), StepError> {
        self.member.contributions.begin_step();
        self.words.clear();
        encode(step, &mut self.words);
        self.write(record::STEP)
    }

    fn end_step(&mut self, _: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
        self.member.finish_step(result)
    }
}
