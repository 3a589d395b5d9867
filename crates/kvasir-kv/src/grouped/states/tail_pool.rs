//! `TailPool`: allocates the tails of the state pool. A tail stores the draft inputs of one
//! sequence.
//!
//! A sequence takes a tail with its first claim and releases it when it is closed or truncated to a
//! checkpoint. Only a sequence with a tail has a live state, so the number of tails also bounds the
//! live states. A released tail that a step in flight leases is not given to another sequence,
//! because canceling the step may return it.

use crate::contract::usage::PoolUsage;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tail {
    is_taken: bool,
    /// Number of rows of steps in flight that name it.
    leases: u32,
}

/// The tails of a state pool, by slot number.
#[derive(Clone, Debug)]
pub(crate) struct TailPool(Vec<Tail>);

impl TailPool {
    pub(crate) fn new(count: u32) -> Self {
        Self(vec![Tail::default(); count as usize])
    }

    /// Number of tails that `take` can provide.
    pub(crate) fn free(&self) -> u32 {
        self.0.iter().filter(|tail| **tail == Tail::default()).count() as u32
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        let held = self.0.iter().filter(|tail| tail.is_taken).count() as u32;
        let free = self.free();
        PoolUsage { free, evictable: 0, held, leased: self.0.len() as u32 - held - free }
    }

    /// Whether a row of a step in flight uses a tail.
    pub(crate) fn is_leased(&self, tail: u32) -> bool {
        self.0[tail as usize].leases > 0
    }

    /// Takes the lowest free tail.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.0.iter().position(|tail| *tail == Tail::default())?;
        self.0[number].is_taken = true;
        Some(number as u32)
    }

    /// Returns a released tail, which a canceled step still leases, to its sequence.
    pub(crate) fn retake(&mut self, tail: u32) {
        debug_assert!(!self.0[tail as usize].is_taken && self.0[tail as usize].leases > 0);
        self.0[tail as usize].is_taken = true;
    }

    pub(crate) fn release(&mut self, tail: u32) {
        debug_assert!(self.0[tail as usize].is_taken);
        self.0[tail as usize].is_taken = false;
    }

    pub(crate) fn lease(&mut self, tail: u32) {
        self.0[tail as usize].leases += 1;
    }

    pub(crate) fn end_lease(&mut self, tail: u32) {
        self.0[tail as usize].leases -= 1;
    }

    /// Compares with the tails that sequences hold and that rows in flight name.
    pub(crate) fn check(&self, taken: &[u32], leased: &[u32]) -> Result<(), String> {
        for (number, tail) in (0..).zip(&self.0) {
            let count = |numbers: &[u32]| numbers.iter().filter(|&&other| other == number).count() as u32;
            if (u32::from(tail.is_taken), tail.leases) != (count(taken), count(leased)) {
                return Err(format!("tail {number} has wrong counts: {tail:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::grouped::states::tail_pool::*;

    #[test]
    fn a_leased_tail_is_not_given_to_another_sequence() {
        let mut tails = TailPool::new(2);
        let tail = tails.take().unwrap();
        tails.lease(tail);
        tails.release(tail);
        assert_eq!(tails.usage(), PoolUsage { free: 1, evictable: 0, held: 0, leased: 1 });
        assert_eq!((tails.take(), tails.take()), (Some(1), None));
        tails.retake(tail);
        tails.end_lease(tail);
        assert_eq!((tails.usage().held, tails.free()), (2, 0));
        tails.release(tail);
        assert_eq!(tails.take(), Some(tail));
    }
}
