//! The indexer of sparse attention: scores all visible cache entries, or key pools of consecutive
//! entries, and selects the top-k for each query.
//!
//! `score = sum over heads of weight * max(q . k, 0)`. Each query is one work item; the summation
//! order is fixed, so the selection does not depend on the batch. Key pools begin at positions that
//! are multiples of their size, so the selection does not depend on the slots either.

use crate::attention::views::Views;
use crate::isa::features::Isa;
use crate::memory::kv_pool::Pool;
use crate::rowwise::exp;
use crate::threads::pool::ThreadPool;
use kvasir_kv::{Plan, PlanRow};
use kvasir_program::{LayerFacts, Rope};
use std::ops::Range;
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
    /// Weights of the heads, `heads` numbers per token; `None` if all are 1.
    pub(crate) weights: Option<&'a [f32]>,
    pub(crate) heads: usize,
    pub(crate) top_k: usize,
    /// The pools to score; `None` scores single entries.
    pub(crate) key_pool: Option<ResolvedKeyPool<'a>>,
    /// Maximum length of each token's sequence.
    pub(crate) final_lens: &'a [u32],
}

/// Key pools of `size` entries: a `kvasir_program::KeyPool` with its weights and RoPE looked up.
#[derive(Clone, Copy)]
pub(crate) struct ResolvedKeyPool<'a> {
    pub(crate) size: usize,
    pub(crate) combine: ResolvedPooling<'a>,
}

/// A `kvasir_program::KeyPooling` that this backend runs, with its weights and RoPE.
#[derive(Clone, Copy)]
pub(crate) enum ResolvedPooling<'a> {
    Gated { bias: &'a [f32] },
    Mean { norm: &'a [f32], plus: f32, eps: f32, rope: &'a Rope },
}

impl ResolvedKeyPool<'_> {
    /// The key of a complete pool. `rows` are the cached rows of its entries, `position` its first
    /// position.
    fn key(&self, rows: &[f32], position: u32, final_len: u32) -> Vec<f32> {
        match self.combine {
            ResolvedPooling::Gated { bias } => self.gated_sum(rows, bias),
            ResolvedPooling::Mean { norm, plus, eps, rope } => {
                let mut key = vec![0f32; norm.len()];
                for row in rows.chunks_exact(norm.len().max(1)) {
                    key.iter_mut().zip(row).for_each(|(key, x)| *key += x);
                }
                key.iter_mut().for_each(|key| *key /= self.size as f32);
                let squares = key.iter().map(|x| x * x).sum::<f32>();
                let factor = 1.0 / (squares / key.len() as f32 + eps).sqrt();
                key.iter_mut().zip(norm).for_each(|(key, weight)| *key *= factor * (plus + weight));
                rotate_halves(&mut key, rope, position, final_len);
                key
            }
        }
    }

    /// Per channel, the sum of the keys weighted by the softmax of `gate + bias`. `rows` is
    /// `[size, 2, dim]`: the key and the gates of each entry.
    fn gated_sum(&self, rows: &[f32], bias: &[f32]) -> Vec<f32> {
        let dim = bias.len() / self.size.max(1);
        let channel = |channel: usize| {
            let gates = (0..self.size).map(|n| rows[(2 * n + 1) * dim + channel]);
            let biases = bias.iter().skip(channel).step_by(dim);
            let gates: Vec<f32> = gates.zip(biases).map(|(gate, bias)| gate + bias).collect();
            let largest = gates.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let (mut key, mut sum) = (0.0, 0.0);
            for (n, gate) in gates.into_iter().enumerate() {
                let weight = exp(gate - largest);
                (key, sum) = (rows[2 * n * dim + channel].mul_add(weight, key), sum + weight);
            }
            key / sum
        };
        (0..dim).map(channel).collect()
    }
}

/// Applies RoPE to the first `rope.dims()` elements, in pairs `(i, i + rope.dims() / 2)`.
fn rotate_halves(key: &mut [f32], rope: &Rope, position: u32, final_len: u32) {
    let (first, second) = key[..rope.dims()].split_at_mut(rope.dims() / 2);
    for ((a, b), frequency) in first.iter_mut().zip(second).zip(rope.frequencies(final_len)) {
        let (cos, sin) = rope.turn(*frequency, position);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// The rows of a key pool that is not complete yet.
#[derive(Default)]
struct PendingKeyPool {
    /// Index of the key pool: position divided by size.
    number: usize,
    /// Index of its first entry among the visible ones.
    first: usize,
    rows: Vec<f32>,
}

/// The `top_k` best-scored entries of each query. With key pools: the entries of the `top_k / size`
/// best-scored ones, and all entries that are in no complete one. Sorted by position; the earlier
/// entry wins ties.
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
        let weights = indexer.weights.map(|weights| &weights[token * heads..(token + 1) * heads]);
        let weight = |head: usize| weights.map_or(1.0, |weights| weights[head]);
        let mut key = vec![0f32; facts.index_dim];
        let score = |key: &[f32]| -> f32 {
            let head = |q: &[f32]| q.iter().zip(key).map(|(a, b)| a * b).sum::<f32>().max(0.0);
            let queries = q.chunks_exact(q_width / heads.max(1)).enumerate();
            queries.map(|(n, q)| weight(n) * head(q)).sum()
        };
        // Candidates are ranges of the visible entries: one entry or one complete key pool.
        let mut scored: Vec<(f32, Range<usize>)> = Vec::new();
        let (mut visible, mut incomplete): (Vec<u32>, Vec<Range<usize>>) = Default::default();
        let mut pending = PendingKeyPool::default();
        for (i, (pool, slot, at)) in (0u32..).zip(plan.entries(row)) {
            let near = facts.window.is_none_or(|w| at <= position && position - at < w);
            let Some(rows) = &indexer.pools[pool.0 as usize].layers[indexer.layer].index else { continue };
            if !near || !plan.sees(row, query as u32, i) {
                continue;
            }
            // SAFETY: one of the slots that the caller guarantees.
            unsafe { rows.read(isa, slot, 0, &mut key) };
            let index = visible.len();
            visible.push(i);
            let Some(key_pool) = indexer.key_pool else {
                scored.push((score(&key), index..index + 1));
                continue;
            };
            let number = at as usize / key_pool.size;
            if pending.rows.is_empty() || pending.number != number {
                if !pending.rows.is_empty() {
                    incomplete.push(pending.first..index);
                    pending.rows.clear();
                }
                (pending.number, pending.first) = (number, index);
            }
            pending.rows.extend_from_slice(&key);
            if pending.rows.len() == key_pool.size * key.len() {
                let first = at + 1 - key_pool.size as u32;
                let key = key_pool.key(&pending.rows, first, indexer.final_lens[token]);
                scored.push((score(&key), pending.first..index + 1));
                pending.rows.clear();
            }
        }
        if !pending.rows.is_empty() {
            incomplete.push(pending.first..visible.len());
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.start.cmp(&b.1.start)));
        scored.truncate(indexer.top_k / indexer.key_pool.map_or(1, |key_pool| key_pool.size));
        let ranges = scored.into_iter().map(|(_, range)| range).chain(incomplete);
        let mut ids: Vec<u32> = ranges.flat_map(|range| &visible[range]).copied().collect();
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
