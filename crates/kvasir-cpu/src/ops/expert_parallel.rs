//! Mixture of experts (MoE) with expert parallelism: the experts are divided among replicas.
//!
//! 1. Dispatch: send the rows with the ids of their experts to all replicas.
//! 2. Compute the local experts for the rows of all replicas.
//! 3. Combine: `y[token] = sum of weight * output` over the token's experts, in ascending order.
//!
//! The result equals that of `mixture` bit for bit. `kvasir-cli/tests/serve/experts.rs` guards
//! this.

use crate::ops::mixture::{ExpertRows, Experts, MixtureMemory, Routes};
use crate::threads::rows::{DisjointRows, for_each_row};
use kvasir_exec::{DispatchRows, ExpertExchange, NO_EXPERT, StepError, StoreOutput};

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

/// MoE FFN of `rows`. `experts` are the local experts; `exchange` reaches those of other replicas.
/// All replicas must call it the same number of times per step, even without rows.
pub(crate) fn expert_parallel_mixture(
    experts: &Experts<'_>,
    exchange: &dyn ExpertExchange,
    rows: &RoutedRows<'_>,
    m: &mut MixtureMemory,
    y: &mut [f32],
) -> Result<(), StepError> {
    let RoutedRows { x, width, routes, top_k } = *rows;
    let mut outputs = std::mem::take(&mut m.outputs);
    let mut expert_ids = std::mem::take(&mut m.expert_ids);
    expert_ids.clear();
    for routes in routes {
        let ids = routes.iter().map(|(expert, _)| *expert);
        expert_ids.extend(ids.chain(std::iter::repeat(NO_EXPERT)).take(top_k));
    }
    outputs.clear();
    outputs.resize(expert_ids.len() * width, 0.0);
    let local = experts.first..experts.first + experts.count();
    let own = DispatchRows { rows: x, width, experts: &expert_ids, top_k };
    let mut compute =
        |received: DispatchRows<'_>, store: &StoreOutput<'_>| compute_received(experts, received, m, store);
    let exchanged = exchange.exchange(own, local, &mut compute, &mut outputs);
    let sums = DisjointRows::new(y, width);
    for_each_row(experts.threads, routes.len(), &|_, token| {
        // SAFETY: each row is written by one thread.
        let sum = unsafe { sums.row(token) };
        sum.fill(0.0);
        let routes = &routes[token];
        let mut choices: Vec<usize> = (0..routes.len().min(top_k)).collect();
        choices.sort_unstable_by_key(|choice| routes[*choice].0);
        for choice in choices {
            let (weight, out) = (routes[choice].1, &outputs[(token * top_k + choice) * width..][..width]);
            sum.iter_mut().zip(out).for_each(|(y, v)| *y += weight * v);
        }
    });
    (m.outputs, m.expert_ids) = (outputs, expert_ids);
    exchanged
}

/// Computes the local experts for received rows, and stores one output per local entry of
/// `received.experts`.
fn compute_received(
    experts: &Experts<'_>,
    received: DispatchRows<'_>,
    m: &mut MixtureMemory,
    store: &StoreOutput<'_>,
) {
    for expert in 0..experts.count() {
        let entries = received.experts.iter().enumerate();
        let entries = entries.filter(|(_, id)| **id as usize == experts.first + expert);
        let entries: Vec<usize> = entries.map(|(entry, _)| entry).collect();
        if !entries.is_empty() {
            let row_of = |row: usize| entries[row] / received.top_k;
            let rows = ExpertRows { x: received.rows, row_of: &row_of, count: entries.len() };
            experts.compute(expert, &rows, m, &|row, out| store(entries[row], out));
        }
    }
}
