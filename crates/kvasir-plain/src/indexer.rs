//! Reference indexer of sparse attention: selects the best entries, or pools of entries, per query.

use crate::attention::Pools;
use crate::mask::Reads;
use crate::math::{dot, largest, softmax};
use crate::pool::Part;
use kvasir_program::{LayerId, Rope};
use std::borrow::Cow;

/// The indexer of one layer.
pub(crate) struct Indexer<'a> {
    pub(crate) layer: LayerId,
    pub(crate) top_k: usize,
    /// How keys are pooled; `None` if each entry is scored by itself.
    pub(crate) pool: Option<Pooling<'a>>,
    pub(crate) kv_pools: Pools<'a>,
}

/// Key pools of `size` entries.
#[derive(Clone, Copy)]
pub(crate) struct Pooling<'a> {
    pub(crate) size: usize,
    pub(crate) combine: Combine<'a>,
}

/// How the key of a key pool is computed from its rows; see `kvasir_program::PoolCombine`.
#[derive(Clone, Copy)]
pub(crate) enum Combine<'a> {
    Gated { bias: &'a [f32] },
    Mean { norm: &'a [f32], plus: f32, eps: f32, rope: &'a Rope },
}

impl Indexer<'_> {
    /// Selects the entries that one query attends to, in order of position.
    ///
    /// Without pools: the `top_k` visible entries with the highest scores. With pools: the entries
    /// of the `top_k / size` best complete pools, and all visible entries of incomplete pools.
    ///
    /// Without `weights`, those of all heads are 1. `final_len` is the maximum length of the
    /// sequence.
    pub(crate) fn select(
        &self,
        reads: &Reads,
        visible: &[u32],
        q: &[f32],
        weights: Option<&[f32]>,
        final_len: u32,
    ) -> Vec<u32> {
        let size = self.pool.map_or(1, |pool| pool.size);
        let pool_index = |entry: u32| reads.entries[entry as usize].2 as usize / size;
        let candidates: Vec<&[u32]> = match self.pool {
            None => visible.chunks(1).collect(),
            Some(_) => visible.chunk_by(|a, b| pool_index(*a) == pool_index(*b)).collect(),
        };
        let (complete, rest): (Vec<&[u32]>, Vec<&[u32]>) =
            candidates.into_iter().partition(|entries| entries.len() == size);
        let score = |entries: &&[u32]| {
            let key = self.key(reads, entries, final_len);
            let heads = q.chunks(key.len()).enumerate();
            let weight = |head: usize| weights.map_or(1.0, |weights| weights[head]);
            heads.map(|(head, q)| weight(head) * dot(q, &key).max(0.0)).sum()
        };
        let scores: Vec<f32> = complete.iter().map(score).collect();
        let best = largest(&scores, self.top_k / size);
        let chosen = best.into_iter().map(|place| complete[place as usize]);
        let mut entries: Vec<u32> = chosen.chain(rest).flatten().copied().collect();
        entries.sort_unstable();
        entries
    }

    /// The key of an entry or of a complete pool.
    fn key(&self, reads: &Reads, entries: &[u32], final_len: u32) -> Cow<'_, [f32]> {
        let row = |entry: u32| {
            let (pool, slot, _) = reads.entries[entry as usize];
            self.kv_pools.row(self.layer, Part::Index, (pool, slot))
        };
        let Some(Pooling { size, combine }) = self.pool else { return row(entries[0]).into() };
        let rows: Vec<&[f32]> = entries.iter().map(|entry| row(*entry)).collect();
        match combine {
            Combine::Gated { bias } => gated_sum(&rows, bias, bias.len() / size).into(),
            Combine::Mean { norm, plus, eps, rope } => {
                let sum = |channel: usize| rows.iter().map(|row| row[channel]).sum::<f32>();
                let mut key: Vec<f32> = (0..norm.len()).map(|channel| sum(channel) / size as f32).collect();
                let factor = 1.0 / (dot(&key, &key) / key.len() as f32 + eps).sqrt();
                key.iter_mut().zip(norm).for_each(|(key, weight)| *key *= factor * (plus + weight));
                rotate_halves(&mut key, rope, reads.entries[entries[0] as usize].2, final_len);
                key.into()
            }
        }
    }
}

/// Per channel the sum of the keys, weighted by the softmax of their gates.
fn gated_sum(rows: &[&[f32]], bias: &[f32], dim: usize) -> Vec<f32> {
    let channel = |channel: usize| {
        let biases = bias.iter().skip(channel).step_by(dim);
        let mut weights: Vec<f32> =
            rows.iter().zip(biases).map(|(row, bias)| row[dim + channel] + bias).collect();
        softmax(&mut weights, None);
        rows.iter().zip(weights).map(|(row, weight)| weight * row[channel]).sum()
    };
    (0..dim).map(channel).collect()
}

/// RoPE of the first elements, in pairs (i, i + half).
fn rotate_halves(key: &mut [f32], rope: &Rope, position: u32, final_len: u32) {
    let (first, second) = key[..rope.dims()].split_at_mut(rope.dims() / 2);
    for ((a, b), frequency) in first.iter_mut().zip(second).zip(rope.frequencies(final_len)) {
        let (cos, sin) = rope.turn(*frequency, position);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
