//! [`RankExecutor`]: wraps the executor of one tensor-parallel rank, or of one expert-parallel
//! replica, and keeps it in lockstep with the others.
//!
//! 1. It reports every bind, release and step to its [`RankControl`], in execution order. The
//!    control of rank 0 broadcasts them; see `kvasir-fleet`.
//! 2. It runs each step between [`begin_step`](RankControl::begin_step) and
//!    [`end_step`](RankControl::end_step).
//!
//! Tokens in flight are resolved before the control sees a step, so a rank needs no sampler state
//! to follow: `RankExecutor` keeps the newest token of each pool row, as
//! [`SamplerRow`](crate::SamplerRow) does. The caller gets its step back as it was.
//!
//! After [`StepError::Lost`] every further step fails with the same error.

use crate::batch::{IN_FLIGHT, PoolRow};
use crate::executor::{Abilities, Executor, Ran, Refused, SequenceSpec, Step, StepError};
use crate::kv_rows::{KvLayout, NoKvAccess};
use kvasir_kv::{GroupId, Slot, Token};
use std::ops::Range;

/// Keeps the ranks of a group in lockstep. An error of `bind` or `release` fails the next step, if
/// it is [`StepError::Lost`].
pub trait RankControl: Send {
    /// Called before a sequence of this [final length](SequenceSpec::final_len) is bound to a pool
    /// row.
    fn bind(&mut self, row: PoolRow, final_len: u32) -> Result<(), StepError>;
    /// Called before the memory of these slots of a layer group is released.
    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) -> Result<(), StepError>;
    /// Called before a step runs, with all in-flight tokens resolved. An error skips the step.
    fn begin_step(&mut self, step: &Step) -> Result<(), StepError>;
    /// Called after a step with this rank's result. Returns the result of the step for the caller.
    fn end_step(&mut self, step: &mut Step, result: Result<(), StepError>) -> Result<(), StepError>;
}

/// An executor that runs each step synchronously in `submit`.
type SyncExecutor = Box<dyn Executor<Pending = Ran> + Send>;

/// The executor of one tensor-parallel rank.
pub struct RankExecutor {
    inner: SyncExecutor,
    control: Box<dyn RankControl>,
    /// The newest token of each pool row's sequence.
    newest: Vec<Option<Token>>,
    /// The first loss of a rank; fails every later step.
    lost: Option<StepError>,
    /// Batch indices of the tokens that `resolve` has replaced.
    in_flight: Vec<usize>,
    /// Accepted drafts. Scratch of `record_newest`.
    accepted: Vec<u32>,
}

impl RankExecutor {
    /// Wraps `inner`, whose binds, releases and steps are reported to `control`.
    pub fn new(inner: impl Executor<Pending = Ran> + Send + 'static, control: Box<dyn RankControl>) -> Self {
        let newest = vec![None; inner.abilities().pool_rows as usize];
        let (in_flight, accepted) = (Vec::new(), Vec::new());
        Self { inner: Box::new(inner), control, newest, lost: None, in_flight, accepted }
    }

    /// Replaces each [`IN_FLIGHT`] token by the newest token of its row; records its index in
    /// `in_flight`.
    fn resolve(&mut self, step: &mut Step) -> Result<(), StepError> {
        self.in_flight.clear();
        for row in &step.batch.rows {
            let newest = self.newest.get(row.pool_row.0 as usize).copied().flatten();
            for at in row.tokens.range() {
                let Some(token) = step.batch.tokens.get_mut(at).filter(|token| **token == IN_FLIGHT) else {
                    continue;
                };
                self.in_flight.push(at);
                match newest {
                    Some(newest) => *token = newest,
                    None => {
                        return Err(StepError::Failed(
                            "row has an in-flight token, but no sampled one".into(),
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the newest token of each sampled row: the one after the last accepted draft.
    fn record_newest(&mut self, step: &Step) {
        for (i, (row, output)) in step.batch.rows.iter().zip(&step.output.rows).enumerate() {
            let sampled = step.output.tokens.get(output.tokens.range()).unwrap_or(&[]);
            self.accepted.clear();
            if row.drafts.count > 0 {
                step.accepted(i, &mut self.accepted);
            }
            let last = match self.accepted.last() {
                Some(node) => sampled.get(*node as usize),
                None if row.drafts.count > 0 => sampled.first(),
                None => sampled.last(),
            };
            if let (Some(token), Some(newest)) = (last, self.newest.get_mut(row.pool_row.0 as usize)) {
                *newest = Some(*token);
            }
        }
    }

    /// Runs a step between `begin_step` and `end_step` of the control.
    fn run(&mut self, mut step: Box<Step>) -> (Box<Step>, Result<(), StepError>) {
        if let Some(error) = &self.lost {
            return (step, Err(error.clone()));
        }
        let resolved = self.resolve(&mut step);
        let begun = resolved.and_then(|()| self.control.begin_step(&step));
        let result = match begun {
            Ok(()) => {
                let (ran, result) = match self.inner.submit(step) {
                    Ok(pending) => self.inner.wait(pending),
                    Err(Refused { step, error }) => (step, Err(error)),
                };
                step = ran;
                self.control.end_step(&mut step, result)
            }
            Err(error) => Err(error),
        };
        if result.is_ok() {
            self.record_newest(&step);
        }
        self.latch_lost(result.clone());
        for at in &self.in_flight {
            step.batch.tokens[*at] = IN_FLIGHT;
        }
        (step, result)
    }

    /// Keeps the first `Lost` error, which fails every later step.
    fn latch_lost(&mut self, result: Result<(), StepError>) {
        if let Err(error @ StepError::Lost(_)) = result {
            self.lost.get_or_insert(error);
        }
    }
}

impl Executor for RankExecutor {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        if let Some(newest) = self.newest.get_mut(row.0 as usize) {
            *newest = spec.output.last().copied();
        }
        let result = self.control.bind(row, spec.final_len);
        self.latch_lost(result);
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
        let (step, result) = self.run(step);
        Ok(Ran::now(step, |_| result))
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        pending.into_parts()
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        let result = self.control.release(group, slots);
        self.latch_lost(result);
        self.inner.release(group, slots);
    }

    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        self.inner.kv_layout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchRow, RowKind};
    use crate::output::Drawn;
    use kvasir_kv::Span;
    use std::sync::{Arc, Mutex};

    /// Samples the first fed token plus one.
    struct AddOne;

    impl Executor for AddOne {
        type Pending = Ran;
        fn abilities(&self) -> Abilities {
            Abilities::all(2, 8, 2)
        }
        fn bind(&mut self, _: PoolRow, _: SequenceSpec) {}
        fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
            Ok(Ran::now(step, |step| {
                step.output.reset();
                let tokens = vec![step.batch.tokens[0] + 1];
                step.output.push(&mut Drawn { tokens, ..Drawn::default() });
                Ok(())
            }))
        }
        fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
            pending.into_parts()
        }
    }

    /// Records its calls; reports a lost rank from the third step on.
    struct RecordingControl(Arc<Mutex<Vec<String>>>);

    impl RecordingControl {
        fn record(&self, line: String) -> Result<(), StepError> {
            let mut calls = self.0.lock().unwrap();
            calls.push(line);
            let steps = calls.iter().filter(|line| line.starts_with("step")).count();
            if steps < 3 { Ok(()) } else { Err(StepError::Lost("rank 1".into())) }
        }
    }

    impl RankControl for RecordingControl {
        fn bind(&mut self, row: PoolRow, final_len: u32) -> Result<(), StepError> {
            self.record(format!("bind {} {final_len}", row.0))
        }
        fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) -> Result<(), StepError> {
            self.record(format!("release {} {slots:?}", group.0))
        }
        fn begin_step(&mut self, step: &Step) -> Result<(), StepError> {
            self.record(format!("step {:?}", step.batch.tokens))
        }
        fn end_step(&mut self, _: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
            result
        }
    }

    fn decode(token: Token) -> Box<Step> {
        let mut step = Box::<Step>::default();
        step.batch.tokens.push(token);
        let (kind, tokens) = (RowKind::Decode, Span::new(0, 1));
        step.batch.rows.push(BatchRow { kind, tokens, pool_row: PoolRow(1), ..BatchRow::default() });
        step
    }

    fn run(executor: &mut RankExecutor, token: Token) -> (Token, Result<(), StepError>) {
        let pending = executor.submit(decode(token)).unwrap();
        let (step, result) = executor.wait(pending);
        (step.batch.tokens[0], result)
    }

    #[test]
    fn the_control_gets_resolved_tokens_and_the_caller_does_not() {
        let calls = Arc::default();
        let mut executor = RankExecutor::new(AddOne, Box::new(RecordingControl(Arc::clone(&calls))));
        assert!(matches!(run(&mut executor, IN_FLIGHT), (IN_FLIGHT, Err(StepError::Failed(_)))));
        executor.bind(PoolRow(1), SequenceSpec { final_len: 9, ..SequenceSpec::default() });
        executor.release(GroupId(1), &[3..5, 8..9]);
        assert_eq!(run(&mut executor, 6), (6, Ok(())));
        assert_eq!(run(&mut executor, IN_FLIGHT), (IN_FLIGHT, Ok(())));
        assert_eq!(*calls.lock().unwrap(), ["bind 1 9", "release 1 [3..5, 8..9]", "step [6]", "step [7]"]);
    }

    #[test]
    fn a_lost_rank_fails_every_further_step() {
        let calls = Arc::default();
        let mut executor = RankExecutor::new(AddOne, Box::new(RecordingControl(Arc::clone(&calls))));
        let lost = Err(StepError::Lost("rank 1".into()));
        let results: Vec<_> = (0..5).map(|_| run(&mut executor, 4).1).collect();
        assert_eq!(results, [Ok(()), Ok(()), lost.clone(), lost.clone(), lost]);
        assert_eq!(calls.lock().unwrap().len(), 3);
    }
}
