//! [`ThreadRank`]: collectives of ranks that are threads of one process. The reference for those over
//! shared memory, and what tests of a divided model run on.
//!
//! 1. Each rank copies its rows into its own slot.
//! 2. All ranks wait at a barrier.
//! 3. Each rank reads all slots in rank order.
//! 4. All ranks wait again, so that no slot is overwritten while another rank still reads it.
//!
//! Every rank must call the same collectives in the same order, or the barrier deadlocks.

use kvasir_exec::{Ranks, StepError};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

/// One rank of several that are threads of one process.
pub struct ThreadRank {
    rank: usize,
    meeting: Arc<Meeting>,
}

struct Meeting {
    /// The latest contribution of each rank.
    rows: Vec<Mutex<Vec<f32>>>,
    barrier: Barrier,
}

impl ThreadRank {
    /// Creates `count` connected ranks. Each must run on its own thread, since every collective
    /// blocks on a barrier.
    pub fn all(count: usize) -> Vec<Self> {
        let rows = (0..count).map(|_| Mutex::default()).collect();
        let meeting = Arc::new(Meeting { rows, barrier: Barrier::new(count) });
        (0..count).map(|rank| Self { rank, meeting: Arc::clone(&meeting) }).collect()
    }

    /// Publishes `rows`, waits for all ranks, and passes each rank's rows to `take` in rank order.
    fn meet(&self, rows: &[f32], mut take: impl FnMut(usize, &[f32])) {
        let of = |rank: usize| self.meeting.rows[rank].lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = of(self.rank);
        own.clear();
        own.extend_from_slice(rows);
        drop(own);
        self.meeting.barrier.wait();
        (0..self.count()).for_each(|rank| take(rank, &of(rank)));
        // No rank may publish its next rows while another still reads these.
        self.meeting.barrier.wait();
    }
}

impl Ranks for ThreadRank {
    fn count(&self) -> usize {
        self.meeting.rows.len()
    }

    fn all_reduce(&self, rows: &mut [f32]) -> Result<(), StepError> {
        let own = rows.to_vec();
        rows.fill(0.0);
        self.meet(&own, |_, theirs| rows.iter_mut().zip(theirs).for_each(|(sum, v)| *sum += v));
        Ok(())
    }

    fn all_gather(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError> {
        let stride = width * self.count();
        self.meet(rows, |rank, theirs| {
            for (all, row) in all.chunks_exact_mut(stride.max(1)).zip(theirs.chunks_exact(width.max(1))) {
                all[rank * width..][..width].copy_from_slice(row);
            }
        });
        Ok(())
    }
}
