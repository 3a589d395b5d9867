//! Reference MoE with expert parallelism: the experts are divided among replicas.
//!
//! Dispatches the rows to the replicas of their experts, computes the local experts for the rows of
//! all replicas, and adds the returned outputs in the order of `mixture`.

use crate::math::add_scaled;
use crate::mixture::{Routes, expert_output, local_index};
use crate::weights::Weights;
use kvasir_exec::{DispatchRows, ExpertExchange, NO_EXPERT, StepError, StoreOutput};
use kvasir_program::Experts;

/// Input rows of an MoE layer, with the routes of each.
pub(crate) struct RoutedRows<'a> {
    /// All rows, concatenated.
    pub(crate) x: &'a [f32],
    /// Values per row.
    pub(crate) width: usize,
    /// Routes of each row, at most `top_k`.
    pub(crate) routes: &'a [Routes],
    pub(crate) top_k: usize,
}

/// Computes the MoE layer of `rows`. `experts` are the local experts; `exchange` reaches those of
/// other replicas.
pub(crate) fn expert_parallel_mixture(
    exchange: &dyn ExpertExchange,
    rows: &RoutedRows<'_>,
    experts: &Experts,
    weights: &Weights,
    out: &mut [f32],
) -> Result<(), StepError> {
    let RoutedRows { x, width, routes, top_k } = *rows;
    let mut expert_ids: Vec<u32> = Vec::with_capacity(routes.len() * top_k);
    for routes in routes {
        let ids = routes.iter().map(|(expert, _)| *expert);
        expert_ids.extend(ids.chain(std::iter::repeat(NO_EXPERT)).take(top_k));
    }
    let mut outputs = vec![0.0; expert_ids.len() * width];
    let mut compute = |received: DispatchRows<'_>, store: &StoreOutput<'_>| {
        for (entry, id) in received.experts.iter().enumerate() {
            if let Some(expert) = local_index(*id, experts) {
                let x = &received.rows[entry / received.top_k * received.width..][..received.width];
                store(entry, &expert_output(x, expert, experts, weights));
            }
        }
    };
    let own = DispatchRows { rows: x, width, experts: &expert_ids, top_k };
    let local = experts.first..experts.first + experts.gate.count;
    exchange.exchange(own, local, &mut compute, &mut outputs)?;
    out.fill(0.0);
    for (token, (routes, out)) in routes.iter().zip(out.chunks_exact_mut(width)).enumerate() {
        let outputs = outputs[token * top_k * width..].chunks_exact(width);
        routes.iter().zip(outputs).for_each(|((_, weight), output)| add_scaled(out, *weight, output));
    }
    Ok(())
}
