//! Reference MoE whose experts are divided among replicas (expert parallelism).
//!
//! The rows go to the replicas of their experts, and the outputs return. They are added as in
//! `mixture`, in the same order.

use crate::math::add_scaled;
use crate::mixture::{Routes, expert_output, local};
use crate::weights::Weights;
use kvasir_exec::{DispatchRows, ExpertExchange, NO_EXPERT, StepError, StoreOutput};
use kvasir_program::Experts;

/// Rows of a mixture with their routes, of `chosen` experts each.
pub(crate) struct RoutedRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) routes: &'a [Routes],
    pub(crate) chosen: usize,
}

/// Computes the mixture of `rows`, whose experts are divided among the replicas of `exchange`.
pub(crate) fn exchanged_mixture(
    exchange: &dyn ExpertExchange,
    rows: &RoutedRows<'_>,
    experts: &Experts,
    weights: &Weights,
    out: &mut [f32],
) -> Result<(), StepError> {
    let RoutedRows { x, width, routes, chosen } = *rows;
    let mut ids: Vec<u32> = Vec::with_capacity(routes.len() * chosen);
    for routes in routes {
        let routed = routes.iter().map(|(expert, _)| *expert);
        ids.extend(routed.chain(std::iter::repeat(NO_EXPERT)).take(chosen));
    }
    let mut outputs = vec![0.0; ids.len() * width];
    let mut compute = |received: DispatchRows<'_>, store: &StoreOutput<'_>| {
        for (entry, id) in received.experts.iter().enumerate() {
            if let Some(expert) = local(*id, experts) {
                let x = &received.rows[entry / received.chosen * received.width..][..received.width];
                store(entry, &expert_output(x, expert, experts, weights));
            }
        }
    };
    let own = DispatchRows { rows: x, width, experts: &ids, chosen };
    let range = experts.first..experts.first + experts.gate.count;
    exchange.exchange(own, range, &mut compute, &mut outputs)?;
    out.fill(0.0);
    for (token, (routes, out)) in routes.iter().zip(out.chunks_exact_mut(width)).enumerate() {
        let outputs = outputs[token * chosen * width..].chunks_exact(width);
        routes.iter().zip(outputs).for_each(|((_, share), output)| add_scaled(out, *share, output));
    }
    Ok(())
}
