//! Collectives for tensor parallelism: all-reduce and all-gather between the ranks of one model.
//!
//! Invariant: a reduction accumulates in rank order, so every rank gets the same bits. Every rank
//! must call the same collectives in the same order.

use crate::executor::StepError;
use std::sync::Arc;

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
