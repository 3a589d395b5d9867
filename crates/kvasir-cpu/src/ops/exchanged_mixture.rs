//! Mixture of experts whose experts are divided among replicas (expert parallelism).
//!
//! 1. Send the rows with their chosen experts to all replicas.
//! 2. Compute the local experts for the rows of all replicas.
//! 3. Add the returned outputs of each row, weighted, in ascending order of its experts.
//!
//! Step 3 is the sum of `mixture`, bit for bit. `kvasir-cli/tests/serve/experts.rs` guards this.

use crate::ops::mixture::{ExpertRows, Experts, MixtureMemory, Routes};
use crate::threads::rows::{DisjointRows, for_each_row};
use kvasir_exec::{DispatchRows, ExpertExchange, NO_EXPERT, StepError, StoreOutput};

/// Rows of a mixture with their routes, of `chosen` experts each.
pub(crate) struct RoutedRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) routes: &'a [Routes],
    pub(crate) chosen: usize,
}

/// Computes the mixture of `rows`, whose experts are divided among the replicas of `exchange`. Every
/// replica must call it as often, also without rows.
pub(crate) fn exchanged_mixture(
    experts: &Experts<'_>,
    exchange: &dyn ExpertExchange,
    rows: &RoutedRows<'_>,
    m: &mut MixtureMemory,
    y: &mut [f32],
) -> Result<(), StepError> {
    let RoutedRows { x, width, routes, chosen } = *rows;
    let mut outputs = std::mem::take(&mut m.outputs);
    let mut ids = std::mem::take(&mut m.chosen);
    ids.clear();
    for routes in routes {
        let routed = routes.iter().map(|(expert, _)| *expert);
        ids.extend(routed.chain(std::iter::repeat(NO_EXPERT)).take(chosen));
    }
    outputs.clear();
    outputs.resize(ids.len() * width, 0.0);
    let local = experts.first..experts.first + experts.count();
    let own = DispatchRows { rows: x, width, experts: &ids, chosen };
    let mut compute =
        |received: DispatchRows<'_>, store: &StoreOutput<'_>| run_received(experts, received, m, store);
    let exchanged = exchange.exchange(own, local, &mut compute, &mut outputs);
    let sums = DisjointRows::new(y, width);
    for_each_row(experts.threads, routes.len(), &|_, token| {
        // SAFETY: each row is written by one thread.
        let sum = unsafe { sums.row(token) };
        sum.fill(0.0);
        let routes = &routes[token];
        let mut places: Vec<usize> = (0..routes.len().min(chosen)).collect();
        places.sort_unstable_by_key(|place| routes[*place].0);
        for place in places {
            let (weight, out) = (routes[place].1, &outputs[(token * chosen + place) * width..][..width]);
            sum.iter_mut().zip(out).for_each(|(y, v)| *y += weight * v);
        }
    });
    (m.outputs, m.chosen) = (outputs, ids);
    exchanged
}

/// Computes the local experts for received rows.
fn run_received(
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
            let row_of = |row: usize| entries[row] / received.chosen;
            let rows = ExpertRows { x: received.rows, row_of: &row_of, count: entries.len() };
            experts.run(expert, &rows, m, &|row, out| store(entries[row], out));
        }
    }
}
