//! Joining a step: an all-gather of the replicas' token counts and prefill states.
//!
//! For step `n`, a replica writes its join record `n % 2`, publishes `n` as the number of steps that
//! it has begun, waits until all others have begun step `n`, and reads their records.
//!
//! Invariant: no record is overwritten while it is read. The record of step `n + 2` overwrites that
//! of step `n`, and is written after all replicas have begun step `n + 1`, hence read those of `n`.

use crate::experts::layout::{ExchangeLayout, JOIN_WORDS};
use crate::experts::member::{ReplicaMember, locked};
use crate::ranks::ring_error::RingError;
use crate::ranks::sync::Ordering;
use kvasir_engine::{Lockstep, ReplicaState};
use kvasir_exec::{PoolRow, RankControl, RowKind, Step, StepError};
use kvasir_kv::Slot;
use std::{ops::Range, sync::Arc};

/// Error of a replica that does not follow the protocol.
pub(crate) fn out_of_step(replica: usize, why: String) -> StepError {
    StepError::Lost(format!("replica {replica} is out of step: {why}"))
}

impl ReplicaMember {
    /// Begins the next step with `tokens` tokens, and waits until all replicas have. Writes the
    /// tokens of each replica to `counts`.
    pub(crate) fn join(&self, tokens: u32, counts: &mut Vec<u32>) -> Result<(), StepError> {
        let (step, layout) = (Self::next(&self.step), &self.layout);
        self.exchanges.store(0, Ordering::Relaxed);
        let own = *locked(&self.own_state);
        // SAFETY: no replica reads this record any more; see the module's invariant.
        unsafe { self.endpoint.memory.write(layout.join(self.replica, step), &record(tokens, own)) };
        let threads = |replica| [replica, layout.replicas + replica];
        let woken = self.others().flat_map(threads);
        self.endpoint.publish(layout.begun(self.replica), step, woken);
        counts.clear();
        counts.resize(layout.replicas, tokens);
        let mut states = locked(&self.states);
        states.clear();
        for replica in self.others() {
            self.wait_for_step(layout, replica, step)?;
            let mut record = [0; JOIN_WORDS];
            // SAFETY: the record is published, and not overwritten before this replica's next step.
            unsafe { self.endpoint.memory.read(layout.join(replica, step), &mut record) };
            counts[replica] = record[0];
            states.push(state_of(&record));
        }
        Ok(())
    }

    /// Waits until a replica has begun a step.
    fn wait_for_step(&self, layout: &ExchangeLayout, replica: usize, step: u32) -> Result<(), StepError> {
        let waited = self.endpoint.wait(|| {
            let ahead = self.endpoint.load(layout.begun(replica)).wrapping_sub(step) as i32;
            match ahead {
                0 | 1 => Some(Ok(())),
                -1 => None,
                _ => Some(Err(out_of_step(replica, format!("it is {ahead} steps ahead")))),
            }
        });
        waited.map_err(|error: RingError| StepError::Lost(error.to_string()))?
    }
}

fn record(tokens: u32, state: ReplicaState) -> [u32; JOIN_WORDS] {
    let [pending, decoding] =
        [state.pending_tokens, state.running_decode].map(|n| [n as u32, (n >> 32) as u32]);
    [tokens, state.prefillable.into(), pending[0], pending[1], decoding[0], decoding[1]]
}

fn state_of(record: &[u32; JOIN_WORDS]) -> ReplicaState {
    let number = |at: usize| u64::from(record[at]) | u64::from(record[at + 1]) << 32;
    ReplicaState { prefillable: record[1] != 0, pending_tokens: number(2), running_decode: number(4) }
}

/// The lockstep as its engine sees it.
pub(crate) struct EngineLockstep(pub(crate) Arc<ReplicaMember>);

impl Lockstep for EngineLockstep {
    fn is_behind(&self) -> bool {
        self.0.is_behind()
    }

    fn exchange_states(&mut self, own: ReplicaState, others: &mut Vec<ReplicaState>) {
        *locked(&self.0.own_state) = own;
        others.extend_from_slice(&locked(&self.0.states));
    }
}

/// Joins the steps of its executor with those of the other replicas.
pub(crate) struct JoinControl {
    pub(crate) member: Arc<ReplicaMember>,
    /// Tokens of each replica in the running step.
    pub(crate) counts: Vec<u32>,
}

impl RankControl for JoinControl {
    fn bind(&mut self, _: PoolRow, _: u32) -> Result<(), StepError> {
        Ok(())
    }

    fn release(&mut self, _: &[Range<Slot>]) -> Result<(), StepError> {
        Ok(())
    }

    fn begin_step(&mut self, step: &Step) -> Result<(), StepError> {
        let real = step.batch.rows.iter().filter(|row| row.kind != RowKind::Dummy);
        self.member.join(real.map(|row| row.tokens.len).sum(), &mut self.counts)
    }

    fn end_step(&mut self, step: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
        step.output.num_tokens_across_dp.clone_from(&self.counts);
        // The others wait for the rows of this replica.
        result.map_err(|error| match error {
            lost @ StepError::Lost(_) => lost,
            other => StepError::Lost(format!("replica {}: {other}", self.member.replica)),
        })
    }
}

impl ReplicaMember {
    /// The control of the executor that runs this replica's steps. A member must have one control.
    pub fn control(self: &Arc<Self>) -> Box<dyn RankControl> {
        Box::new(JoinControl { member: Arc::clone(self), counts: Vec::new() })
    }

    /// The lockstep for the engine of this replica.
    pub fn lockstep(self: &Arc<Self>) -> Box<dyn Lockstep> {
        Box::new(EngineLockstep(Arc::clone(self)))
    }
}
