//! Joins a step: an all-gather of the replicas' token counts and [`ReplicaState`]s.
//!
//! For step `n`, a replica writes its join record `n % 2`, publishes `n` as the number of steps that
//! it has begun, waits until all others have begun step `n`, and reads their records.
//!
//! Invariant: no record is overwritten while it is read. The record of step `n + 2` overwrites that
//! of step `n`. It is written after all replicas have begun step `n + 1`, and so have read the
//! records of step `n`.

use crate::experts::layout::JOIN_WORDS;
use crate::experts::member::{ExpertGroupMember, locked};
use crate::ranks::ring_error::RingError;
use crate::ranks::sync::Ordering;
use kvasir_engine::{Lockstep, ReplicaState};
use kvasir_exec::{PoolRow, RankControl, RowKind, Step, StepError};
use kvasir_kv::{GroupId, Slot};
use std::{ops::Range, sync::Arc};

/// Error of a replica whose shared state does not match the step or exchange of this one.
pub(crate) fn out_of_step(replica: usize, why: String) -> StepError {
    StepError::Lost(format!("replica {replica} is out of step: {why}"))
}

impl ExpertGroupMember {
    /// Begins the next step with `tokens` tokens, and waits until all replicas have begun it.
    /// Writes the number of tokens of each replica to `counts`.
    pub(crate) fn join(&self, tokens: u32, counts: &mut Vec<u32>) -> Result<(), StepError> {
        let (step, layout) = (Self::increment(&self.step), &self.layout);
        self.exchanges.store(0, Ordering::Relaxed);
        let own = *locked(&self.own_state);
        // SAFETY: no replica reads this record now; see the module's invariant.
        unsafe { self.endpoint.memory.write(layout.join(self.replica, step), &encode_record(tokens, own)) };
        let threads = |replica| [replica, layout.replicas + replica];
        let woken = self.others().flat_map(threads);
        self.endpoint.publish(layout.begun(self.replica), step, woken);
        counts.clear();
        counts.resize(layout.replicas, tokens);
        let mut states = locked(&self.other_states);
        states.clear();
        for replica in self.others() {
            self.wait_for_count(replica, layout.begun(replica), step, "steps")?;
            let mut record = [0; JOIN_WORDS];
            // SAFETY: the record is published, and not overwritten before this replica's next step.
            unsafe { self.endpoint.memory.read(layout.join(replica, step), &mut record) };
            counts[replica] = record[0];
            states.push(decode_state(&record));
        }
        Ok(())
    }

    /// Waits until the counter of `replica` at `line` has reached `count`. Fails if it differs from
    /// `count` by more than one. `unit` names what it counts in the error.
    pub(crate) fn wait_for_count(
        &self,
        replica: usize,
        line: usize,
        count: u32,
        unit: &str,
    ) -> Result<(), StepError> {
        let waited = self.endpoint.wait(|| {
            let ahead = self.endpoint.load(line).wrapping_sub(count) as i32;
            match ahead {
                0 | 1 => Some(Ok(())),
                -1 => None,
                _ => Some(Err(out_of_step(replica, format!("it is {ahead} {unit} ahead")))),
            }
        });
        waited.map_err(|error: RingError| StepError::Lost(error.to_string()))?
    }
}

fn encode_record(tokens: u32, state: ReplicaState) -> [u32; JOIN_WORDS] {
    let [pending, decoding] =
        [state.pending_tokens, state.running_decode].map(|n| [n as u32, (n >> 32) as u32]);
    [tokens, state.prefillable.into(), pending[0], pending[1], decoding[0], decoding[1]]
}

fn decode_state(record: &[u32; JOIN_WORDS]) -> ReplicaState {
    let join_u64 = |at: usize| u64::from(record[at]) | u64::from(record[at + 1]) << 32;
    ReplicaState { prefillable: record[1] != 0, pending_tokens: join_u64(2), running_decode: join_u64(4) }
}

/// Implements [`Lockstep`] for the engine of a replica.
pub(crate) struct EngineLockstep(pub(crate) Arc<ExpertGroupMember>);

impl Lockstep for EngineLockstep {
    fn is_behind(&self) -> bool {
        self.0.is_behind()
    }

    fn exchange_states(&mut self, own: ReplicaState, others: &mut Vec<ReplicaState>) {
        *locked(&self.0.own_state) = own;
        others.extend_from_slice(&locked(&self.0.other_states));
    }
}

/// Joins each step of an executor with those of the other replicas.
pub(crate) struct JoinControl {
    pub(crate) member: Arc<ExpertGroupMember>,
    /// Number of tokens of each replica in the running step.
    pub(crate) counts: Vec<u32>,
}

impl RankControl for JoinControl {
    fn bind(&mut self, _: PoolRow, _: u32) -> Result<(), StepError> {
        Ok(())
    }

    fn release(&mut self, _: GroupId, _: &[Range<Slot>]) -> Result<(), StepError> {
        Ok(())
    }

    fn begin_step(&mut self, step: &Step) -> Result<(), StepError> {
        let real = step.batch.rows.iter().filter(|row| row.kind != RowKind::Dummy);
        self.member.join(real.map(|row| row.tokens.len).sum(), &mut self.counts)
    }

    fn end_step(&mut self, step: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
        step.output.num_tokens_across_dp.clone_from(&self.counts);
        // The other replicas wait for this one in an exchange of the failed step, so the group must
        // restart.
        result.map_err(|error| match error {
            lost @ StepError::Lost(_) => lost,
            other => StepError::Lost(format!("replica {}: {other}", self.member.replica)),
        })
    }
}

impl ExpertGroupMember {
    /// Returns the control of this replica's executor. Call it once per member.
    pub fn control(self: &Arc<Self>) -> Box<dyn RankControl> {
        Box::new(JoinControl { member: Arc::clone(self), counts: Vec::new() })
    }

    /// Returns the lockstep interface of this replica's engine.
    pub fn lockstep(self: &Arc<Self>) -> Box<dyn Lockstep> {
        Box::new(EngineLockstep(Arc::clone(self)))
    }
}
