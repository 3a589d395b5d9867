//! Steps in flight and deferred release: which steps are claimed, and which references are released
//! only when a step ends.
//!
//! States of a step: *claimed* (`begin`) → *retired* (`take_oldest`) or *cancelled*
//! (`take_newest`).
//!
//! Invariants:
//!
//! - Steps are claimed under rising numbers, retire in that order, and only the newest can be
//!   cancelled.
//! - A reference that a sequence releases while a step naming the sequence is in flight stays until
//!   that step ends. The reference itself waits, so reference counts cannot free the slot early.
//! - Releases of a cancelled step move to the step before it.
//!
//! The unit tests cover each rule; `tests/random_operations.rs` and `tests/shadow` run it under
//! every cache.

use crate::{CacheError, StepId};
use std::collections::VecDeque;

/// One claimed step: what the cache noted of its rows, and what must be let go of when it ends.
#[derive(Clone, Debug)]
pub struct Flight<R, D> {
    /// The step.
    pub step: StepId,
    /// One record per row of the claim, in its order.
    pub rows: Vec<R>,
    /// References that were given up while the step was in flight.
    pub releases: Vec<D>,
}

/// The claimed steps of one cache, oldest first: the bookkeeping that every cache shares.
///
/// Steps are claimed under rising numbers, retire in that order, and only the newest can be cancelled. What a
/// sequence gives up (it is closed, truncated, re-pointed) while a step naming it is in flight is not let go of at
/// once: [`InFlight::defer`] attaches it to that step, and whoever ends the step finds it in
/// [`Flight::releases`]. The *reference* is what waits, so nothing that looks at references can take the slot early.
///
/// `R` is what a cache notes per row, `D` is one thing to release. Ended flights are handed back with
/// [`InFlight::recycle`], so the steady state takes no memory.
#[derive(Clone, Debug)]
pub struct InFlight<R, D> {
    steps: VecDeque<Flight<R, D>>,
    spare: Vec<Flight<R, D>>,
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
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Flight<R, D>> {
        self.steps.iter()
    }

    /// The claimed steps' row records, oldest step first, to change: a verb that shortens a sequence shortens what its
    /// steps will publish.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.steps.iter_mut().flat_map(|flight| flight.rows.iter_mut())
    }

    /// Whether `step` may be claimed now: its number is above all that were ever claimed, cancelled ones included.
    pub fn check_claim(&self, step: StepId) -> Result<(), CacheError> {
        match self.newest_claimed.is_none_or(|newest| newest < step) {
            true => Ok(()),
            false => Err(CacheError::StepOutOfOrder(step)),
        }
    }

    /// Begins a step and gives its row records to fill. Check everything that can fail before: a begun step only
    /// ends by [`InFlight::take_oldest`] or [`InFlight::take_newest`].
    pub fn begin(&mut self, step: StepId) -> Result<&mut Vec<R>, CacheError> {
        self.check_claim(step)?;
        self.newest_claimed = Some(step);
        let flight = match self.spare.pop() {
            Some(spare) => Flight { step, ..spare },
            None => Flight { step, rows: Vec::new(), releases: Vec::new() },
        };
        self.steps.push_back(flight);
        match self.steps.back_mut() {
            Some(flight) => Ok(&mut flight.rows),
            None => Err(CacheError::UnknownStep(step)),
        }
    }

    /// A claimed step.
    pub fn get(&self, step: StepId) -> Result<&Flight<R, D>, CacheError> {
        // Few steps are in flight, and the one asked for is mostly the newest.
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

    /// Keeps `release` until the newest claimed step up to `after` ends, or gives it back for doing at once where
    /// there is none. `after` is the last step that named the sequence.
    pub fn defer(&mut self, after: StepId, release: D) -> Result<(), D> {
        match self.steps.iter_mut().rev().find(|flight| flight.step <= after) {
            Some(flight) => {
                flight.releases.push(release);
                Ok(())
            }
            None => Err(release),
        }
    }

    /// The same for several, all or none.
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

    /// Takes the oldest step for retirement. `None` if it has retired before. The caller does what
    /// [`Flight::releases`] says and recycles the flight.
    pub fn take_oldest(&mut self, step: StepId) -> Result<Option<Flight<R, D>>, CacheError> {
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

    /// Takes the newest step for cancelling. Releases that waited for it now wait for the step before it; only
    /// where there is none are they left in the flight, for the caller to do.
    pub fn take_newest(&mut self, step: StepId) -> Result<Flight<R, D>, CacheError> {
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

    /// Takes an ended flight's memory back.
    pub fn recycle(&mut self, mut flight: Flight<R, D>) {
        flight.rows.clear();
        flight.releases.clear();
        self.spare.push(flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn retiring_goes_in_order_and_twice_is_once() {
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
    fn only_the_newest_is_cancelled() {
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
    fn cancelling_hands_releases_to_the_step_before() {
        let mut inflight = claimed(&[1, 2]);
        inflight.defer(StepId(2), "row").unwrap();
        let cancelled = inflight.take_newest(StepId(2)).unwrap();
        assert!(cancelled.releases.is_empty());
        inflight.recycle(cancelled);
        assert_eq!(retire(&mut inflight, 1), ["row"]);
        inflight.begin(StepId(3)).unwrap();
        inflight.defer(StepId(3), "alone").unwrap();
        assert_eq!(inflight.take_newest(StepId(3)).unwrap().releases, ["alone"]);
    }

    #[test]
    fn ended_flights_lend_their_memory_to_later_ones() {
        let mut inflight = claimed(&[1]);
        let flight = inflight.take_oldest(StepId(1)).unwrap().unwrap();
        let memory = flight.rows.as_ptr();
        inflight.recycle(flight);
        let rows = inflight.begin(StepId(2)).unwrap();
        rows.push(7);
        assert_eq!(rows.as_ptr(), memory);
    }
}
