//! Steps in flight and deferred release: which steps are claimed, and which references are released
//! only when a step ends.
//!
//! States of a step: *claimed* (`begin`) → *retired* (`take_oldest`) or *canceled*
//! (`take_newest`).
//!
//! Invariants:
//!
//! - Steps are claimed under rising numbers, retire in that order, and only the newest can be
//!   canceled.
//! - A reference that a sequence releases while a step naming the sequence is in flight stays until
//!   that step ends. The reference itself waits, so reference counts cannot free the slot early.
//! - Releases of a canceled step move to the step before it.
//!
//! The unit tests cover each rule; `tests/random_operations.rs` and `tests/shadow` run it under
//! every cache.

use crate::contract::error::CacheError;
use crate::contract::ids::StepId;
use std::collections::VecDeque;

/// One claimed step: its row records and the releases deferred to its end.
#[derive(Clone, Debug)]
pub struct InFlightStep<R, D> {
    /// The step.
    pub step: StepId,
    /// One record per batch row of the claim, in its order.
    pub rows: Vec<R>,
    /// References released while the step was in flight.
    pub releases: Vec<D>,
}

/// The claimed steps of one cache, oldest first, with deferred releases.
///
/// When a sequence releases something while a step naming it is in flight, [`InFlight::defer`]
/// attaches the release to that step. The cache that ends the step performs [`InFlightStep::releases`].
/// The *reference* waits, so a reference count cannot free the slot early.
///
/// `R` is the record per batch row, `D` one deferred release. Ended flights are handed back with
/// [`InFlight::recycle`], so the steady state allocates nothing.
#[derive(Clone, Debug)]
pub struct InFlight<R, D> {
    steps: VecDeque<InFlightStep<R, D>>,
    spare: Vec<InFlightStep<R, D>>,
    newest_claimed: Option<StepId>,
    newest_retired: Option<StepId>,
}

impl<R, D> Default for InFlight<R, D> {
    fn default() -> Self {
        Self { steps: VecDeque::new(), spare: Vec::new(), newest_claimed: None, newest_retired: None }
    }
}

impl<R, D> InFlight<R, D> {
    /// Whether no step is claimed.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The claimed steps, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &InFlightStep<R, D>> {
        self.steps.iter()
    }

    /// The row records of all claimed steps, mutable, oldest step first: truncating a sequence also
    /// shortens what its steps in flight will publish.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.steps.iter_mut().flat_map(|flight| flight.rows.iter_mut())
    }

    /// Whether `step` may be claimed: its number must exceed every step ever claimed, canceled
    /// ones included.
    pub fn check_claim(&self, step: StepId) -> Result<(), CacheError> {
        if self.newest_claimed.is_none_or(|newest| newest < step) {
            Ok(())
        } else {
            Err(CacheError::StepOutOfOrder(step))
        }
    }

    /// Begins a step and returns its empty row records to fill. Check everything that can fail
    /// before: a begun step ends only by [`InFlight::take_oldest`] or [`InFlight::take_newest`].
    pub fn begin(&mut self, step: StepId) -> Result<&mut Vec<R>, CacheError> {
        self.check_claim(step)?;
        self.newest_claimed = Some(step);
        let flight = match self.spare.pop() {
            Some(spare) => InFlightStep { step, ..spare },
            None => InFlightStep { step, rows: Vec::new(), releases: Vec::new() },
        };
        self.steps.push_back(flight);
        match self.steps.back_mut() {
            Some(flight) => Ok(&mut flight.rows),
            None => Err(CacheError::UnknownStep(step)),
        }
    }

    /// A claimed step.
    pub fn get(&self, step: StepId) -> Result<&InFlightStep<R, D>, CacheError> {
        // Few steps are in flight, and the newest is looked up most often.
        let found = self.steps.iter().rev().find(|flight| flight.step == step);
        found.ok_or(CacheError::UnknownStep(step))
    }

    /// The newest step that has retired; all claimed before it have, too.
    pub fn retired(&self) -> Option<StepId> {
        self.newest_retired
    }

    /// Whether a step up to `after` is still claimed.
    pub fn is_pending(&self, after: StepId) -> bool {
        self.steps.front().is_some_and(|flight| flight.step <= after)
    }

    /// Defers `release` to the end of the newest claimed step up to `after`, the last step that
    /// named the sequence. Returns it in `Err` if there is no such step: then release at once.
    pub fn defer(&mut self, after: StepId, release: D) -> Result<(), D> {
        match self.steps.iter_mut().rev().find(|flight| flight.step <= after) {
            Some(flight) => {
                flight.releases.push(release);
                Ok(())
            }
            None => Err(release),
        }
    }

    /// Defers several releases to one step. False, with nothing deferred, if no step up to `after`
    /// is claimed.
    pub fn defer_all(&mut self, after: StepId, releases: &[D]) -> bool
    where
        D: Copy,
    {
        match self.steps.iter_mut().rev().find(|flight| flight.step <= after) {
            Some(flight) => {
                flight.releases.extend_from_slice(releases);
                true
            }
            None => false,
        }
    }

    /// Takes the oldest step for retirement; `None` if it has retired before. The caller performs
    /// [`InFlightStep::releases`] and recycles the flight.
    pub fn take_oldest(&mut self, step: StepId) -> Result<Option<InFlightStep<R, D>>, CacheError> {
        if self.newest_retired.is_some_and(|newest| step <= newest) {
            return Ok(None);
        }
        if self.steps.front().is_some_and(|flight| flight.step != step) {
            self.get(step)?;
            return Err(CacheError::StepOutOfOrder(step));
        }
        let flight = self.steps.pop_front().ok_or(CacheError::UnknownStep(step))?;
        self.newest_retired = Some(step);
        Ok(Some(flight))
    }

    /// Takes the newest step for cancellation. Its releases move to the step before it; only if
    /// there is none do they stay in the flight, for the caller to perform.
    pub fn take_newest(&mut self, step: StepId) -> Result<InFlightStep<R, D>, CacheError> {
        self.get(step)?;
        if self.steps.back().is_some_and(|flight| flight.step != step) {
            return Err(CacheError::StepOutOfOrder(step));
        }
        let mut flight = self.steps.pop_back().ok_or(CacheError::UnknownStep(step))?;
        if let Some(before) = self.steps.back_mut() {
            before.releases.append(&mut flight.releases);
        }
        Ok(flight)
    }

    /// Keeps an ended flight's memory for reuse.
    pub fn recycle(&mut self, mut flight: InFlightStep<R, D>) {
        flight.rows.clear();
        flight.releases.clear();
        self.spare.push(flight);
    }
}

#[cfg(test)]
mod tests {
    use crate::shared::in_flight::*;

    fn claimed(steps: &[u64]) -> InFlight<u32, &'static str> {
        let mut inflight = InFlight::default();
        for &step in steps {
            inflight.begin(StepId(step)).unwrap().push(step as u32);
        }
        inflight
    }

    fn retire(inflight: &mut InFlight<u32, &'static str>, step: u64) -> Vec<&'static str> {
        let flight = inflight.take_oldest(StepId(step)).unwrap().unwrap();
        let releases = flight.releases.clone();
        inflight.recycle(flight);
        releases
    }

    #[test]
    fn steps_are_claimed_under_rising_numbers() {
        let mut inflight = claimed(&[3, 5]);
        assert_eq!(inflight.begin(StepId(5)).unwrap_err(), CacheError::StepOutOfOrder(StepId(5)));
        assert_eq!(inflight.begin(StepId(4)).unwrap_err(), CacheError::StepOutOfOrder(StepId(4)));
        inflight.take_newest(StepId(5)).unwrap();
        assert_eq!(inflight.check_claim(StepId(5)), Err(CacheError::StepOutOfOrder(StepId(5))));
        assert_eq!(inflight.check_claim(StepId(6)), Ok(()));
    }

    #[test]
    fn steps_retire_in_order_and_once() {
        let mut inflight = claimed(&[1, 2]);
        assert_eq!(inflight.take_oldest(StepId(2)).unwrap_err(), CacheError::StepOutOfOrder(StepId(2)));
        assert_eq!(inflight.take_oldest(StepId(9)).unwrap_err(), CacheError::UnknownStep(StepId(9)));
        retire(&mut inflight, 1);
        assert!(inflight.take_oldest(StepId(1)).unwrap().is_none());
        retire(&mut inflight, 2);
        assert!(inflight.take_oldest(StepId(2)).unwrap().is_none());
        assert_eq!(inflight.take_oldest(StepId(3)).unwrap_err(), CacheError::UnknownStep(StepId(3)));
    }

    #[test]
    fn only_the_newest_is_canceled() {
        let mut inflight = claimed(&[1, 2]);
        assert_eq!(inflight.take_newest(StepId(1)).unwrap_err(), CacheError::StepOutOfOrder(StepId(1)));
        assert_eq!(inflight.take_newest(StepId(7)).unwrap_err(), CacheError::UnknownStep(StepId(7)));
        assert_eq!(inflight.take_newest(StepId(2)).unwrap().rows, [2]);
        assert_eq!(inflight.take_newest(StepId(2)).unwrap_err(), CacheError::UnknownStep(StepId(2)));
        assert_eq!(inflight.take_oldest(StepId(2)).unwrap_err(), CacheError::UnknownStep(StepId(2)));
    }

    #[test]
    fn a_release_waits_for_the_last_step_that_named_it() {
        let mut inflight = claimed(&[1, 2, 4]);
        assert_eq!(inflight.defer(StepId(0), "before all"), Err("before all"));
        inflight.defer(StepId(1), "one").unwrap();
        inflight.defer(StepId(3), "two").unwrap();
        assert!(inflight.is_pending(StepId(1)));
        assert_eq!(retire(&mut inflight, 1), ["one"]);
        assert!(!inflight.is_pending(StepId(1)));
        assert_eq!(retire(&mut inflight, 2), ["two"]);
        assert_eq!(retire(&mut inflight, 4), [""; 0]);
    }

    #[test]
    fn canceling_moves_releases_to_the_previous_step() {
        let mut inflight = claimed(&[1, 2]);
        inflight.defer(StepId(2), "row").unwrap();
        let canceled = inflight.take_newest(StepId(2)).unwrap();
        assert!(canceled.releases.is_empty());
        inflight.recycle(canceled);
        assert_eq!(retire(&mut inflight, 1), ["row"]);
        inflight.begin(StepId(3)).unwrap();
        inflight.defer(StepId(3), "alone").unwrap();
        assert_eq!(inflight.take_newest(StepId(3)).unwrap().releases, ["alone"]);
    }

    #[test]
    fn memory_of_retired_steps_is_reused() {
        let mut inflight = claimed(&[1]);
        let flight = inflight.take_oldest(StepId(1)).unwrap().unwrap();
        let memory = flight.rows.as_ptr();
        inflight.recycle(flight);
        let rows = inflight.begin(StepId(2)).unwrap();
        rows.push(7);
        assert_eq!(rows.as_ptr(), memory);
    }
}
