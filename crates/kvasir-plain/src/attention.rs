//! Reference attention: softmax(Q K^T * scale) V per query, with GQA, MLA, soft-capping and sinks;
//! and the top-k indexer, over single entries or pools of entries (`KeyPool`).
//!
//! Scores of all entries that a row reads are materialized, in order of position, and those that
//! the query does not see are masked to −∞. The order of the reduction therefore depends on
//! positions only, not on slots; and a masked entry adds an exact zero, so that dummy blocks change
//! no bit.

use crate::mask::Reads;
use crate::math::{add_scaled, dot, largest, softmax};
use crate::pool::{Part, Pool};
use kvasir_kv::{Plan, PoolId, Position, Slot};
use kvasir_program::{LayerFacts, LayerId};
use std::borrow::Cow;
use std::{collections::HashMap, sync::Arc};

/// The KV pools that a step reads: the session's own (id 0), and frozen ones (shared prefixes).
pub(crate) struct Pools<'a> {
    pub(crate) own: &'a Pool,
    pub(crate) frozen: &'a HashMap<PoolId, Arc<Pool>>,
}

impl Pools<'_> {
    fn row(&self, layer: LayerId, part: Part, (pool, slot): (PoolId, Slot)) -> &[f32] {
        let pool = if pool == PoolId(0) { self.own } else { &self.frozen[&pool] };
        pool.row(layer, part, slot)
    }
}

/// The attention of one layer.
pub(crate) struct Attention<'a> {
    pub(crate) layer: LayerId,
    pub(crate) facts: LayerFacts,
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) sinks: Option<&'a [f32]>,
    pub(crate) kv_pools: Pools<'a>,
}

impl Attention<'_> {
    /// Computes one query: its heads in `q`, the results in `out`. `visible` are the indices of
    /// visible entries in order of position. A dummy row reads nothing: its result is zero.
    pub(crate) fn query(&self, reads: &Reads, visible: &[u32], q: &[f32], out: &mut [f32]) {
        let LayerFacts { kv_heads, key_dim, value_dim, value_in_key, .. } = self.facts;
        let shared = q.len() / key_dim / kv_heads;
        let mut is_visible = vec![false; reads.entries.len()];
        visible.iter().for_each(|entry| is_visible[*entry as usize] = true);
        let heads = q.chunks(key_dim).zip(out.chunks_mut(value_dim)).enumerate();
        for (head, (q, out)) in heads {
            let kv_head = head / shared;
            let score = |((pool, slot, _), is_visible): (&(PoolId, Slot, Position), &bool)| {
                let key = self.kv_pools.row(self.layer, Part::Key, (*pool, *slot));
                let score = dot(q, &key[kv_head * key_dim..][..key_dim]) * self.scale;
                let score = self.soft_cap.map_or(score, |cap| cap * (score / cap).tanh());
                if *is_visible { score } else { f32::NEG_INFINITY }
            };
            let mut weights: Vec<f32> = reads.entries.iter().zip(&is_visible).map(score).collect();
            softmax(&mut weights, self.sinks.map(|sinks| sinks[head]));
            out.fill(0.0);
            for ((pool, slot, _), weight) in reads.entries.iter().zip(weights) {
                let (part, dim) = if value_in_key { (Part::Key, key_dim) } else { (Part::Value, value_dim) };
                let values = self.kv_pools.row(self.layer, part, (*pool, *slot));
                // A weight of zero adds nothing, even where a masked value is not finite.
                if weight != 0.0 {
                    add_scaled(out, weight, &values[kv_head * dim..][..value_dim]);
                }
            }
        }
    }
}

/// The sparse-attention indexer of one layer.
pub(crate) struct Indexer<'a> {
    pub(crate) layer: LayerId,
    pub(crate) top_k: usize,
    /// How keys are pooled; `None` if each entry is scored by itself.
    pub(crate) pool: Option<GatedKeyPool<'a>>,
    pub(crate) kv_pools: Pools<'a>,
}

/// Size of key pools, in entries, and the biases of their gates, [size, key width].
#[derive(Clone, Copy)]
pub(crate) struct GatedKeyPool<'a> {
    pub(crate) size: usize,
    pub(crate) gate_bias: &'a [f32],
}

impl Indexer<'_> {
    /// Selects the entries that one query attends to, in order of position.
    ///
    /// Without pools: the `top_k` visible entries with the highest scores. With pools: the entries
    /// of the `top_k / size` best complete pools, and all visible entries of incomplete pools.
    pub(crate) fn select(&self, reads: &Reads, visible: &[u32], q: &[f32], weights: &[f32]) -> Vec<u32> {
        let size = self.pool.map_or(1, |pool| pool.size);
        let pool_index = |entry: u32| reads.entries[entry as usize].2 as usize / size;
        let candidates: Vec<&[u32]> = match self.pool {
            None => visible.chunks(1).collect(),
            Some(_) => visible.chunk_by(|a, b| pool_index(*a) == pool_index(*b)).collect(),
        };
        let (complete, incomplete): (Vec<&[u32]>, Vec<&[u32]>) =
            candidates.into_iter().partition(|entries| entries.len() == size);
        let scores: Vec<f32> = complete
            .iter()
            .map(|entries| {
                let key = self.key(reads, entries);
                let heads = q.chunks(q.len() / weights.len()).zip(weights);
                heads.map(|(q, weight)| weight * dot(q, &key).max(0.0)).sum()
            })
            .collect();
        let best = largest(&scores, self.top_k / size);
        let chosen = best.into_iter().map(|index| complete[index as usize]);
        let mut entries: Vec<u32> = chosen.chain(incomplete).flatten().copied().collect();
        entries.sort_unstable();
        entries
    }

    /// The key of a single entry, or the gated sum of the keys of a complete pool.
    fn key(&self, reads: &Reads, entries: &[u32]) -> Cow<'_, [f32]> {
        let row = |entry: u32| {
            let (pool, slot, _) = reads.entries[entry as usize];
            self.kv_pools.row(self.layer, Part::Index, (pool, slot))
        };
        let Some(GatedKeyPool { size, gate_bias }) = self.pool else { return row(entries[0]).into() };
        let dim = gate_bias.len() / size;
        let rows: Vec<&[f32]> = entries.iter().map(|entry| row(*entry)).collect();
        let channel = |channel: usize| {
            let biases = gate_bias.iter().skip(channel).step_by(dim);
            let mut weights: Vec<f32> =
                rows.iter().zip(biases).map(|(row, bias)| row[dim + channel] + bias).collect();
            softmax(&mut weights, None);
            rows.iter().zip(weights).map(|(row, weight)| weight * row[channel]).sum()
        };
        (0..dim).map(channel).collect()
    }
}

/// Iterates over all queries of a step: token index, the entries its row reads, and those visible
/// in a layer.
pub(crate) fn for_each_query<'a>(
    plan: &'a Plan,
    reads: &'a [Reads],
    layer: &'a LayerFacts,
) -> impl Iterator<Item = (usize, &'a Reads, Vec<u32>)> {
    plan.rows.iter().zip(reads).flat_map(move |(row, reads)| {
        row.queries.range().enumerate().map(move |(q, token)| (token, reads, reads.visible(plan, q, layer)))
    })
}
