//! Collectives for tensor parallelism: all-reduce and all-gather between the ranks of one model.
//!
//! [`ThreadRank`] implements them for ranks that are threads of one process:
//!
//! 1. Each rank copies its rows into its own slot.
//! 2. All ranks wait at a barrier.
//! 3. Each rank reads all slots in rank order.
//! 4. All ranks wait again, so that no slot is overwritten while another rank still reads it.
//!
//! Invariant: a reduction accumulates in rank order, so every rank gets the same bits. Every rank
//! must call the same collectives in the same order, or the barrier deadlocks.

use crate::executor::StepError;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

/// The collectives between the ranks of one model (tensor parallelism).
///
/// All ranks run the same steps, so all call the same collectives in the same order.
pub trait Ranks: Send + Sync {
    /// Number of ranks.
    fn count(&self) -> usize;
    /// All-reduce: replaces `rows` by the sum over all ranks, accumulated in rank order, so that
    /// all get the same bits. All ranks must pass equally many. Blocks until every rank has called.
    ///
    /// # Errors
    /// `Failed` if another rank has aborted this step; `Lost` if one has ended or is out of step.
    /// `rows` is then unspecified.
    fn all_reduce(&self, rows: &mut [f32]) -> Result<(), StepError>;
    /// All-gather: concatenates the ranks' rows of `width` values in rank order. `all` must hold
    /// `rows.len() * count()` values. Blocks until every rank has called.
    ///
    /// # Errors
    /// Those of [`all_reduce`](Self::all_reduce).
    fn all_gather(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError>;
    /// Whether this rank samples. Other ranks run the forward pass only and return no tokens.
    fn samples(&self) -> bool {
        true
    }
}

/// The executor of a rank and its [`RankControl`](crate::RankControl) share the collectives.
impl<R: Ranks + ?Sized> Ranks for Arc<R> {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn all_reduce(&self, rows: &mut [f32]) -> Result<(), StepError> {
        (**self).all_reduce(rows)
    }

    fn all_gather(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError> {
        (**self).all_gather(rows, width, all)
    }

    fn samples(&self) -> bool {
        (**self).samples()
    }
}

/// Buffers for an all-gather of rows that do not divide evenly among the ranks.
///
/// Every rank pads its rows to the common width `ceil(full_width / count)`; the padding is dropped
/// after the all-gather.
#[derive(Debug, Default)]
pub struct AllGatherBuffers {
    own: Vec<f32>,
    all: Vec<f32>,
}

impl AllGatherBuffers {
    /// Gathers rows of `full_width` values into `to`. This rank's `rows` have `width` values each:
    /// the common width, or less on the last ranks.
    pub fn all_gather(
        &mut self,
        ranks: &dyn Ranks,
        rows: &[f32],
        width: usize,
        to: &mut [f32],
        full_width: usize,
    ) -> Result<(), StepError> {
        let common = full_width.div_ceil(ranks.count().max(1));
        let padded = common * ranks.count();
        if padded == full_width {
            return ranks.all_gather(rows, width, to);
        }
        let count = to.len() / full_width.max(1);
        self.own.clear();
        self.own.resize(count * common, 0.0);
        for (padded, row) in self.own.chunks_exact_mut(common).zip(rows.chunks_exact(width.max(1))) {
            padded[..width].copy_from_slice(row);
        }
        self.all.resize(count * padded, 0.0);
        ranks.all_gather(&self.own, common, &mut self.all)?;
        for (to, all) in to.chunks_exact_mut(full_width).zip(self.all.chunks_exact(padded)) {
            to.copy_from_slice(&all[..full_width]);
        }
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use crate::ranks::*;

    #[test]
    fn uneven_rows_are_gathered_without_padding() {
        let gathered: Vec<Vec<f32>> = std::thread::scope(|s| {
            let run = |(at, rank): (usize, ThreadRank)| {
                s.spawn(move || {
                    // Rows of 7 values, in shards of 3, 3 and 1.
                    let own: Vec<f32> = (0..2)
                        .flat_map(|row| (at * 3..7.min(at * 3 + 3)).map(move |n| (row * 10 + n) as f32))
                        .collect();
                    let mut all = vec![0.0; 14];
                    AllGatherBuffers::default().all_gather(&rank, &own, own.len() / 2, &mut all, 7).unwrap();
                    all
                })
            };
            let running: Vec<_> = ThreadRank::all(3).into_iter().enumerate().map(run).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let want: Vec<f32> = (0..2).flat_map(|row| (0..7).map(move |n| (row * 10 + n) as f32)).collect();
        assert!(gathered.iter().all(|all| *all == want), "{gathered:?}");
    }

    #[test]
    fn ranks_meet_again_and_again_and_all_get_the_same() {
        let results: Vec<_> = std::thread::scope(|s| {
            let run = |(at, rank): (usize, ThreadRank)| {
                s.spawn(move || {
                    let mut seen = Vec::new();
                    for round in 0..100 {
                        let mut rows = [at as f32 + 1.0, round as f32];
                        rank.all_reduce(&mut rows).unwrap();
                        seen.extend(rows);
                        let mut all = [0.0; 6];
                        rank.all_gather(&[at as f32, round as f32], 1, &mut all).unwrap();
                        seen.extend(all);
                    }
                    seen
                })
            };
            let running: Vec<_> = ThreadRank::all(3).into_iter().enumerate().map(run).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let round = |n: usize| {
            let n = n as f32;
            [6.0, 3.0 * n, 0.0, 1.0, 2.0, n, n, n]
        };
        let want: Vec<f32> = (0..100).flat_map(round).collect();
        assert!(results.iter().all(|seen| *seen == want), "{results:?}");
    }
}
