//! [`ExpertExchange`]: expert parallelism between data-parallel replicas.
//!
//! Each replica holds a part of the experts of every MoE layer. In each MoE layer of a step:
//!
//! 1. Dispatch: each replica sends its rows (hidden states) with the experts selected for each.
//! 2. Each replica computes the outputs of its local experts for the rows of all replicas.
//! 3. Combine: each row's replica receives one unweighted output per selected expert.
//!
//! That replica computes the weighted sum in the order of a model without expert parallelism, so no
//! bit depends on the number of replicas.
//!
//! Invariant: all replicas call the same number of exchanges per step, even if they have no rows.

use crate::executor::StepError;
use std::ops::Range;
use std::sync::Arc;

/// Rows of one MoE layer with their selected experts.
#[derive(Clone, Copy, Debug)]
pub struct DispatchRows<'a> {
    /// All rows, concatenated.
    pub rows: &'a [f32],
    /// Values per row.
    pub width: usize,
    /// The expert ids of each row, `top_k` per row, padded with [`NO_EXPERT`].
    pub experts: &'a [u32],
    /// Expert ids per row.
    pub top_k: usize,
}

/// Entry of [`DispatchRows::experts`] that has no expert, or one of another replica.
pub const NO_EXPERT: u32 = u32::MAX;

/// Stores the output of one expert for one row. The first argument is the index of the row's expert
/// in [`DispatchRows::experts`] of the received rows. Concurrent calls must have different indices.
pub type StoreOutput<'a> = dyn Fn(usize, &[f32]) + Sync + 'a;

/// Computes the outputs of the local experts for received rows. It must store one output for each
/// entry of `experts` that is a local expert, and none for the other entries.
pub type ComputeExperts<'a> = dyn FnMut(DispatchRows<'_>, &StoreOutput<'_>) + 'a;

/// Exchanges rows between the replicas among which the experts of a model are divided.
pub trait ExpertExchange: Send + Sync {
    /// Number of replicas.
    fn count(&self) -> usize;
    /// Maximum number of rows that one call of [`ComputeExperts`] receives.
    fn max_rows(&self) -> usize;
    /// Sends the rows `own` to the replicas of their experts, computes the experts `local` for the
    /// rows of all replicas, and writes the outputs for `own` to `outputs`: one row per entry of
    /// `own.experts`. Blocks until all replicas have called it. May call `compute` several times.
    ///
    /// # Errors
    /// `StepError::Lost` if a replica is at another step or exchange; `outputs` is then
    /// unspecified.
    fn exchange(
        &self,
        own: DispatchRows<'_>,
        local: Range<usize>,
        compute: &mut ComputeExperts<'_>,
        outputs: &mut [f32],
    ) -> Result<(), StepError>;
}

impl<E: ExpertExchange + ?Sized> ExpertExchange for Arc<E> {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn max_rows(&self) -> usize {
        (**self).max_rows()
    }

    fn exchange(
        &self,
        own: DispatchRows<'_>,
        local: Range<usize>,
        compute: &mut ComputeExperts<'_>,
        outputs: &mut [f32],
    ) -> Result<(), StepError> {
        (**self).exchange(own, local, compute, outputs)
    }
}
