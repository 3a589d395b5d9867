//! Reference attention: softmax(Q K^T * scale) V per query, with GQA, MLA, soft-capping and sinks.
//!
//! Scores of all entries that a row reads are materialized, in order of position, and those that
//! the query does not see are masked to −∞. The order of the reduction therefore depends on
//! positions only, not on slots; and a masked entry adds an exact zero, so that dummy blocks change
//! no bit.

use crate::frozen_pool::FrozenPool;
use crate::mask::Reads;
use crate::math::{add_scaled, dot, softmax};
use crate::pool::{Part, Pool};
use kvasir_kv::{PoolId, Position, Slot};
use kvasir_program::{LayerFacts, LayerId};
use std::{collections::HashMap, sync::Arc};

/// The KV pools that a step reads: the session's own (id 0), and frozen ones (shared prefixes).
pub(crate) struct Pools<'a> {
    pub(crate) own: &'a Pool,
    pub(crate) frozen: &'a HashMap<PoolId, Arc<FrozenPool>>,
}

impl Pools<'_> {
    pub(crate) fn row(&self, layer: LayerId, part: Part, (pool, slot): (PoolId, Slot)) -> &[f32] {
        let pool = if pool == PoolId(0) { self.own } else { &self.frozen[&pool].kv };
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
    pub(crate) fn query(&self, reads: &Reads<'_>, visible: &[u32], q: &[f32], out: &mut [f32]) {
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

/// Iterates over all queries of a step: token index, the entries its row reads, and those visible
/// in a layer.
pub(crate) fn for_each_query<'a>(
    reads: &'a [Reads<'a>],
    layer: &'a LayerFacts,
) -> impl Iterator<Item = (usize, &'a Reads<'a>, Vec<u32>)> {
    reads.iter().flat_map(move |reads| {
        reads.queries().enumerate().map(move |(q, token)| (token, reads, reads.visible(q, layer)))
    })
}
