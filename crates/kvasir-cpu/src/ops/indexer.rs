//! The indexer of sparse attention: scores all visible cache entries and selects the top-k for each
//! query.
//!
//! `score = sum over heads of weight * max(q . k, 0)`. Each query is one work item; the summation
//! order is fixed, so the selection does not depend on the batch.

use crate::attention::views::Views;
use crate::isa::features::Isa;
use crate::memory::kv_pool::Pool;
use crate::threads::pool::ThreadPool;
use kvasir_kv::{Plan, PlanRow};
use kvasir_program::LayerFacts;
use std::sync::{Arc, Mutex};

/// Operands of the selection in one layer.
pub(crate) struct Indexer<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) pools: &'a [Arc<Pool>],
    pub(crate) layer: usize,
    pub(crate) facts: &'a LayerFacts,
    /// Queries of all heads: `q_width` numbers per token.
    pub(crate) q: &'a [f32],
    pub(crate) q_width: usize,
    /// Weights of the heads: `heads` numbers per token.
    pub(crate) weights: &'a [f32],
    pub(crate) heads: usize,
    pub(crate) top_k: usize,
}

/// The `top_k` best-scored entries of each query, sorted by position; the earlier entry wins ties.
///
/// # Safety
/// The KV slots that the plan reads must exist, and no other thread may write them concurrently.
pub(crate) unsafe fn select(threads: &ThreadPool, isa: Isa, indexer: &Indexer<'_>) -> Views {
    let Indexer { plan, facts, q_width, heads, .. } = *indexer;
    let queries: Vec<(&PlanRow, usize)> = plan
        .rows
        .iter()
        .flat_map(|row| (0..row.queries.len as usize).map(move |query| (row, query)))
        .collect();
    let chosen: Vec<Mutex<Vec<u32>>> = queries.iter().map(|_| Mutex::default()).collect();
    threads.each(queries.len(), &|_, item| {
        let (row, query) = queries[item];
        let token = row.queries.start as usize + query;
        let position = plan.positions[token];
        let q = &indexer.q[token * q_width..(token + 1) * q_width];
        let weights = &indexer.weights[token * heads..(token + 1) * heads];
        let mut key = vec![0f32; facts.index_dim];
        let mut scored: Vec<(f32, u32)> = Vec::new();
        for (i, (pool, slot, at)) in (0u32..).zip(plan.entries(row)) {
            let near = facts.window.is_none_or(|w| at <= position && position - at < w);
            let Some(rows) = &indexer.pools[pool.0 as usize].layers[indexer.layer].index else { continue };
            if !near || !plan.sees(row, query as u32, i) {
                continue;
            }
            // SAFETY: one of the slots that the caller guarantees.
            unsafe { rows.read(isa, slot, 0, &mut key) };
            let head = |q: &[f32]| q.iter().zip(&key).map(|(a, b)| a * b).sum::<f32>().max(0.0);
            let score = q.chunks_exact(facts.index_dim.max(1)).zip(weights).map(|(q, w)| w * head(q)).sum();
            scored.push((score, i));
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.truncate(indexer.top_k);
        let mut ids: Vec<u32> = scored.into_iter().map(|(_, i)| i).collect();
        ids.sort_unstable();
        if let Ok(mut place) = chosen[item].lock() {
            *place = ids;
        }
    });
    let chosen: Vec<Vec<u32>> = chosen.into_iter().map(|ids| ids.into_inner().unwrap_or_default()).collect();
    let mut views = Views::default();
    views.of_selection(plan, |query| &chosen[query]);
    views
}
