//! `Seats`: the right of a sequence to a live state, and the tail that goes with it.
//!
//! A seat is taken by the first claim of a sequence and given back when the sequence is closed or
//! rests at a checkpoint. While a step in flight names it, no other sequence gets it: a cancel may
//! return it.

use crate::contract::usage::PoolUsage;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seat {
    is_taken: bool,
    /// Rows of steps in flight that name it.
    leases: u32,
}

/// All seats of a pool of states. The number of a seat is that of its tail.
#[derive(Clone, Debug)]
pub(crate) struct Seats(Vec<Seat>);

impl Seats {
    pub(crate) fn new(count: u32) -> Self {
        Self(vec![Seat::default(); count as usize])
    }

    /// Seats that can be taken.
    pub(crate) fn free(&self) -> u32 {
        self.0.iter().filter(|seat| **seat == Seat::default()).count() as u32
    }

    pub(crate) fn usage(&self) -> PoolUsage {
        let held = self.0.iter().filter(|seat| seat.is_taken).count() as u32;
        let free = self.free();
        PoolUsage { free, evictable: 0, held, leased: self.0.len() as u32 - held - free }
    }

    /// Takes the lowest free seat.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.0.iter().position(|seat| *seat == Seat::default())?;
        self.0[number].is_taken = true;
        Some(number as u32)
    }

    /// Takes a seat back that only a step in flight names.
    pub(crate) fn retake(&mut self, seat: u32) {
        debug_assert!(!self.0[seat as usize].is_taken && self.0[seat as usize].leases > 0);
        self.0[seat as usize].is_taken = true;
    }

    pub(crate) fn release(&mut self, seat: u32) {
        debug_assert!(self.0[seat as usize].is_taken);
        self.0[seat as usize].is_taken = false;
    }

    pub(crate) fn lease(&mut self, seat: u32) {
        self.0[seat as usize].leases += 1;
    }

    pub(crate) fn end_lease(&mut self, seat: u32) {
        self.0[seat as usize].leases -= 1;
    }

    /// Compares with the seats that sequences hold and that rows in flight name.
    pub(crate) fn check(&self, taken: &[u32], leased: &[u32]) -> Result<(), String> {
        for (number, seat) in (0..).zip(&self.0) {
            let count = |of: &[u32]| of.iter().filter(|&&other| other == number).count() as u32;
            if (u32::from(seat.is_taken), seat.leases) != (count(taken), count(leased)) {
                return Err(format!("seat {number} counts {seat:?}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::grouped::states::seats::*;

    #[test]
    fn a_leased_seat_is_not_given_to_another() {
        let mut seats = Seats::new(2);
        let seat = seats.take().unwrap();
        seats.lease(seat);
        seats.release(seat);
        assert_eq!(seats.usage(), PoolUsage { free: 1, evictable: 0, held: 0, leased: 1 });
        assert_eq!((seats.take(), seats.take()), (Some(1), None));
        seats.retake(seat);
        seats.end_lease(seat);
        assert_eq!((seats.usage().held, seats.free()), (2, 0));
        seats.release(seat);
        assert_eq!(seats.take(), Some(seat));
    }
}
