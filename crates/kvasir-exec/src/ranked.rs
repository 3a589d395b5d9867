//! [`Ranked`]: the executor of one rank of a tensor-parallel group, in step with the others.
//!
//! A [`RankControl`] is told of every bind, release and step, in the order in which they run. That of
//! rank 0 passes them on to the other ranks; see `kvasir-fleet`.
//!
//! Tokens in flight are resolved before the control sees a step, so a rank needs no sampler state to
//! follow: `Ranked` keeps the newest token of each pool row, as
//! [`SamplerRow`](crate::SamplerRow) does. The caller gets its step back as it was.
//!
//! After [`StepError::Lost`] every further step fails with the same error.

use crate::batch::{IN_FLIGHT, PoolRow};
use crate::executor::{Abilities, Executor, Ran, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::{Slot, Token};
use std::ops::Range;

/// Keeps the ranks of a group in step. An error is that of the step, or of the next one.
pub trait RankControl: Send {
    /// A pool row gets a sequence of this [final length](SequenceSpec::final_len).
    fn bind(&mut self, row: PoolRow, final_len: u32) -> Result<(), StepError>;
    /// The memory of these slots is released.
    fn release(&mut self, slots: &[Range<Slot>]) -> Result<(), StepError>;
    /// A step is about to run; no token of it is in flight.
    fn begin(&mut self, step: &Step) -> Result<(), StepError>;
    /// The step has run here, with this result. Returns the result that the caller gets.
    fn end(&mut self, step: &mut Step, result: Result<(), StepError>) -> Result<(), StepError>;
}

/// An executor that runs its steps inside `submit`.
type Synchronous = Box<dyn Executor<Pending = Ran> + Send>;

/// The executor of one rank, with its control.
pub struct Ranked {
    inner: Synchronous,
    control: Box<dyn RankControl>,
    /// The newest token of each pool row's sequence.
    newest: Vec<Option<Token>>,
    /// An error of the control outside of a step, which the next step reports.
    failed: Option<StepError>,
    /// Indices of the tokens that were in flight. Scratch of `run`.
    in_flight: Vec<usize>,
    /// Accepted drafts. Scratch of `note_newest`.
    accepted: Vec<u32>,
}

impl Ranked {
    /// Puts an executor under a control.
    pub fn new(inner: impl Executor<Pending = Ran> + Send + 'static, control: Box<dyn RankControl>) -> Self {
        let newest = vec![None; inner.abilities().pool_rows as usize];
        let (in_flight, accepted) = (Vec::new(), Vec::new());
        Self { inner: Box::new(inner), control, newest, failed: None, in_flight, accepted }
    }

    /// Replaces each token in flight by the newest one of its row, and notes its index.
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
                        return Err(StepError::Failed("a token is in flight that was never sampled".into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Notes the newest token of every row that has sampled: the one after the last accepted draft.
    fn note_newest(&mut self, step: &Step) {
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

    /// Runs a step between `begin` and `end` of the control.
    fn run(&mut self, mut step: Box<Step>) -> (Box<Step>, Result<(), StepError>) {
        if let Some(error) = &self.failed {
            return (step, Err(error.clone()));
        }
        let resolved = self.resolve(&mut step);
        let begun = resolved.and_then(|()| self.control.begin(&step));
        let result = match begun {
            Ok(()) => {
                let (ran, result) = match self.inner.submit(step) {
                    Ok(pending) => self.inner.wait(pending),
                    Err(Refused { step, error }) => (step, Err(error)),
                };
                step = ran;
                self.control.end(&mut step, result)
            }
            Err(error) => Err(error),
        };
        if result.is_ok() {
            self.note_newest(&step);
        }
        self.keep_lost(result.clone());
        for at in &self.in_flight {
            step.batch.tokens[*at] = IN_FLIGHT;
        }
        (step, result)
    }

    fn keep_lost(&mut self, result: Result<(), StepError>) {
        if let Err(error @ StepError::Lost(_)) = result {
            self.failed.get_or_insert(error);
        }
    }
}

impl Executor for Ranked {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        if let Some(newest) = self.newest.get_mut(row.0 as usize) {
            *newest = spec.output.last().copied();
        }
        let told = self.control.bind(row, spec.final_len);
        self.keep_lost(told);
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
        let (step, result) = self.run(step);
        Ok(Ran::now(step, |_| result))
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        pending.into_parts()
    }

    fn release(&mut self, slots: &[Range<Slot>]) {
        let told = self.control.release(slots);
        self.keep_lost(told);
        self.inner.release(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchRow, RowKind};
    use crate::output::Drawn;
    use kvasir_kv::Span;
    use std::sync::{Arc, Mutex};

    /// Samples the fed token plus one, for one row.
    struct Next;

    impl Executor for Next {
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

    /// Notes what it is told; is lost at the third step.
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Notes {
        fn note(&self, line: String) -> Result<(), StepError> {
            let mut notes = self.0.lock().unwrap();
            notes.push(line);
            let steps = notes.iter().filter(|line| line.starts_with("step")).count();
            if steps < 3 { Ok(()) } else { Err(StepError::Lost("rank 1".into())) }
        }
    }

    impl RankControl for Notes {
        fn bind(&mut self, row: PoolRow, final_len: u32) -> Result<(), StepError> {
            self.note(format!("bind {} {final_len}", row.0))
        }
        fn release(&mut self, slots: &[Range<Slot>]) -> Result<(), StepError> {
            self.note(format!("release {slots:?}"))
        }
        fn begin(&mut self, step: &Step) -> Result<(), StepError> {
            self.note(format!("step {:?}", step.batch.tokens))
        }
        fn end(&mut self, _: &mut Step, result: Result<(), StepError>) -> Result<(), StepError> {
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

    fn run(executor: &mut Ranked, token: Token) -> (Token, Result<(), StepError>) {
        let pending = executor.submit(decode(token)).unwrap();
        let (step, result) = executor.wait(pending);
        (step.batch.tokens[0], result)
    }

    #[test]
    fn the_control_sees_tokens_in_flight_and_the_caller_does_not() {
        let notes = Arc::default();
        let mut executor = Ranked::new(Next, Box::new(Notes(Arc::clone(&notes))));
        assert!(matches!(run(&mut executor, IN_FLIGHT), (IN_FLIGHT, Err(StepError::Failed(_)))));
        executor.bind(PoolRow(1), SequenceSpec { final_len: 9, ..SequenceSpec::default() });
        executor.release(&[3..5]);
        assert_eq!(run(&mut executor, 6), (6, Ok(())));
        assert_eq!(run(&mut executor, IN_FLIGHT), (IN_FLIGHT, Ok(())));
        assert_eq!(*notes.lock().unwrap(), ["bind 1 9", "release [3..5]", "step [6]", "step [7]"]);
    }

    #[test]
    fn a_lost_rank_fails_every_further_step() {
        let notes = Arc::default();
        let mut executor = Ranked::new(Next, Box::new(Notes(Arc::clone(&notes))));
        let lost = Err(StepError::Lost("rank 1".into()));
        let results: Vec<_> = (0..5).map(|_| run(&mut executor, 4).1).collect();
        assert_eq!(results, [Ok(()), Ok(()), lost.clone(), lost.clone(), lost]);
        assert_eq!(notes.lock().unwrap().len(), 3);
    }
}
