//! [`ThreadRank`]: collectives of ranks that are threads of one process. The reference for the
//! collectives over shared memory; tests of sharded models run on it.
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
    shared: Arc<Shared>,
}

/// What the ranks share.
struct Shared {
    /// The latest contribution of each rank.
    rows: Vec<Mutex<Vec<f32>>>,
    barrier: Barrier,
}

impl ThreadRank {
    /// Creates `count` connected ranks. Each must run on its own thread, since every collective
    /// blocks on a barrier.
    pub fn all(count: usize) -> Vec<Self> {
        let rows = (0..count).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { rows, barrier: Barrier::new(count) });
        (0..count).map(|rank| Self { rank, shared: Arc::clone(&shared) }).collect()
    }

    /// Publishes `rows`, waits for all ranks, and passes each rank's rows to `visit` in rank order.
    fn exchange(&self, rows: &[f32], mut visit: impl FnMut(usize, &[f32])) {
        let rows_of = |rank: usize| self.shared.rows[rank].lock().unwrap_or_else(PoisonError::into_inner);
        let mut own = rows_of(self.rank);
        own.clear();
        own.extend_from_slice(rows);
        drop(own);
        self.shared.barrier.wait();
        (0..self.count()).for_each(|rank| visit(rank, &rows_of(rank)));
        // No rank may publish its next rows while another still reads these.
        self.shared.barrier.wait();
    }
}

impl Ranks for ThreadRank {
    fn count(&self) -> usize {
        self.shared.rows.len()
    }

    fn all_reduce(&self, rows: &mut [f32]) -> Result<(), StepError> {
        let own = rows.to_vec();
        rows.fill(0.0);
        self.exchange(&own, |_, addends| rows.iter_mut().zip(addends).for_each(|(sum, v)| *sum += v));
        Ok(())
    }

    fn all_gather(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError> {
        let stride = width * self.count();
        self.exchange(rows, |rank, shards| {
            for (all, row) in all.chunks_exact_mut(stride.max(1)).zip(shards.chunks_exact(width.max(1))) {
                all[rank * width..][..width].copy_from_slice(row);
            }
        });
        Ok(())
    }
}
