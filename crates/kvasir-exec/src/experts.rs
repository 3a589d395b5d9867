//! [`ExpertExchange`]: expert parallelism between data-parallel replicas.
//!
//! Each replica holds some experts of every mixture. In each mixture layer of a step:
//!
//! 1. Dispatch: each replica sends its rows, with the experts that each row was routed to.
//! 2. Each replica computes the outputs of its own experts for the rows of all replicas.
//! 3. Combine: the outputs return to the row's replica, one per chosen expert and unweighted.
//!
//! The receiver computes the weighted sum in the order of the complete model, so no bit depends on
//! the number of replicas. All replicas call as many exchanges per step, also without any rows.

use crate::executor::StepError;
use std::ops::Range;
use std::sync::Arc;

/// The rows that a replica sends to the experts of one mixture.
#[derive(Clone, Copy, Debug)]
pub struct DispatchRows<'a> {
    /// All rows, concatenated.
    pub rows: &'a [f32],
    /// Values per row.
    pub width: usize,
    /// The experts of each row, `chosen` per row; [`NO_EXPERT`] fills unused places.
    pub experts: &'a [u32],
    /// Experts per row.
    pub chosen: usize,
}

/// Entry of [`DispatchRows::experts`] without an expert.
pub const NO_EXPERT: u32 = u32::MAX;

/// Stores the output of one expert for one row. The first argument is the index of the expert in
/// [`DispatchRows::experts`] of the received rows. Threads may call it at the same time, for
/// different indices.
pub type StoreOutput<'a> = dyn Fn(usize, &[f32]) + Sync + 'a;

/// Computes the outputs of the local experts for received rows. It must store one output for each
/// entry of `experts` that is a local expert, and none for the others.
pub type ComputeExperts<'a> = dyn FnMut(DispatchRows<'_>, &StoreOutput<'_>) + 'a;

/// The exchange of rows between the replicas that share the experts of one model.
pub trait ExpertExchange: Send + Sync {
    /// Number of replicas.
    fn count(&self) -> usize;
    /// Maximum number of rows that one call of a [`ComputeExperts`] receives.
    fn max_rows(&self) -> usize;
    /// Sends `own` rows to the replicas of their experts, computes the `local` experts for the rows
    /// of all replicas, and writes the outputs for `own` rows to `outputs`: one row per entry of
    /// `own.experts`. Blocks until every replica has called. `compute` may run several times.
    ///
    /// # Errors
    /// `Lost` if a replica is out of step. `outputs` is then unspecified.
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
