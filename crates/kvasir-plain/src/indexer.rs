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
    /// The pools to score; `None` scores single entries.
    pub(crate) pool: Option<ResolvedKeyPool<'a>>,
    pub(crate) kv_pools: Pools<'a>,
}

/// Key pools of `size` entries: a `kvasir_program::KeyPool` with its weights and RoPE looked up.
#[derive(Clone, Copy)]
pub(crate) struct ResolvedKeyPool<'a> {
    pub(crate) size: usize,
    pub(crate) combine: ResolvedPooling<'a>,
}

/// A `kvasir_program::KeyPooling` with its weights and RoPE.
#[derive(Clone, Copy)]
pub(crate) enum ResolvedPooling<'a> {
    Gated { bias: &'a [f32] },
    Mean { norm: &'a [f32], plus: f32, eps: f32, rope: &'a Rope },
    Compressed(EntryCompression<'a>),
}

/// `kvasir_program::KeyPooling::Compressed` with its weights and RoPE.
#[derive(Clone, Copy)]
pub(crate) struct EntryCompression<'a> {
    pub(crate) start: usize,
    pub(crate) dim: usize,
    pub(crate) parts: usize,
    pub(crate) bias: &'a [f32],
    pub(crate) norm: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) rope: &'a Rope,
}

impl Indexer<'_> {
    /// Selects the entries that one query attends to, in order of position.
    ///
    /// Without pools: the `top_k` visible entries with the highest scores. With pools: the entries
    /// of the `top_k / size` best complete pools, and all visible entries of incomplete pools.
    ///
    /// `weights` has one weight per head; `None` means that all are 1. `final_len` is the maximum
    /// length of the sequence.
    pub(crate) fn select(
        &self,
        reads: &Reads,
        visible: &[u32],
        q: &[f32],
        weights: Option<&[f32]>,
        final_len: u32,
    ) -> Vec<u32> {
        let size = self.pool.map_or(1, |pool| pool.size);
        let (complete, rest) = match self.pool {
            None => (visible.chunks(1).collect(), &[][..]),
            Some(pool) => pool.split(reads, visible),
        };
        let score = |index: usize| {
            let previous = index.checked_sub(1).map_or(&[][..], |previous| complete[previous]);
            let key = self.key(reads, previous, complete[index], final_len);
            let heads = q.chunks(key.len()).enumerate();
            let weight = |head: usize| weights.map_or(1.0, |weights| weights[head]);
            heads.map(|(head, q)| weight(head) * dot(q, &key).max(0.0)).sum()
        };
        let scores: Vec<f32> = (0..complete.len()).map(score).collect();
        let best = largest(&scores, self.top_k / size);
        let chosen = best.into_iter().map(|index| complete[index as usize]);
        let mut entries: Vec<u32> = chosen.flatten().chain(rest).copied().collect();
        entries.sort_unstable();
        entries
    }

    /// The key of an entry or of a complete pool; `previous` has the entries of the pool before it.
    fn key(&self, reads: &Reads, previous: &[u32], entries: &[u32], final_len: u32) -> Cow<'_, [f32]> {
        let row = |entry: &u32| {
            let (pool, slot, _) = reads.entries[*entry as usize];
            self.kv_pools.row(self.layer, Part::Index, (pool, slot))
        };
        let Some(key_pool) = self.pool else { return row(&entries[0]).into() };
        let [previous, rows] = [previous, entries].map(|entries| entries.iter().map(row).collect::<Vec<_>>());
        key_pool.key(&previous, &rows, reads.entries[entries[0] as usize].2, final_len).into()
    }
}

impl ResolvedKeyPool<'_> {
    /// Splits the visible entries into the leading complete pools and the entries after them.
    pub(crate) fn split<'a>(&self, reads: &Reads, visible: &'a [u32]) -> (Vec<&'a [u32]>, &'a [u32]) {
        let pool_index = |entry: u32| reads.entries[entry as usize].2 as usize / self.size;
        let complete: Vec<&[u32]> = visible
            .chunk_by(|a, b| pool_index(*a) == pool_index(*b))
            .take_while(|entries| entries.len() == self.size)
            .collect();
        let rest = &visible[complete.len() * self.size..];
        (complete, rest)
    }

    /// The key of a complete pool. `rows` and `previous` are the cached rows of its entries and of
    /// the pool before it; `position` is its first position.
    pub(crate) fn key(
        &self,
        previous: &[&[f32]],
        rows: &[&[f32]],
        position: u32,
        final_len: u32,
    ) -> Vec<f32> {
        match self.combine {
            ResolvedPooling::Gated { bias } => gated_sum(rows, bias, bias.len() / self.size),
            ResolvedPooling::Mean { norm, plus, eps, rope } => {
                let sum = |channel: usize| rows.iter().map(|row| row[channel]).sum::<f32>();
                let sums = (0..norm.len()).map(|channel| sum(channel) / self.size as f32);
                let mut key = normed(sums.collect(), norm, plus, eps);
                let (first, second) = key[..rope.dims()].split_at_mut(rope.dims() / 2);
                rotate(first.iter_mut().zip(second), rope, position, final_len);
                key
            }
            ResolvedPooling::Compressed(form) => {
                let mut key = normed(form.weighted_sum(previous, rows), form.norm, 0.0, form.eps);
                let start = form.dim - form.rope.dims();
                let (pairs, _) = key[start..].as_chunks_mut::<2>();
                rotate(pairs.iter_mut().map(|[a, b]| (a, b)), form.rope, position, final_len);
                key
            }
        }
    }
}

impl EntryCompression<'_> {
    /// Per channel, the sum of values weighted by the softmax of `gate + bias`.
    fn weighted_sum(&self, previous: &[&[f32]], rows: &[&[f32]]) -> Vec<f32> {
        let width = self.parts * self.dim;
        // The pool uses the last part of its own rows and, with two parts, the first part of the
        // rows of the previous pool.
        let own = (self.parts - 1) * self.dim;
        let previous = if self.parts == 2 { previous } else { &[] };
        let channel = |channel: usize| {
            let gate_and_value = |(index, row): (usize, &&[f32]), part_start: usize| {
                let at = part_start + channel;
                (row[self.start + width + at] + self.bias[index * width + at], row[self.start + at])
            };
            let first = previous.iter().enumerate().map(|row| gate_and_value(row, 0));
            let second = rows.iter().enumerate().map(|row| gate_and_value(row, own));
            let (mut weights, values): (Vec<f32>, Vec<f32>) = first.chain(second).unzip();
            softmax(&mut weights, None);
            weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
        };
        (0..self.dim).map(channel).collect()
    }
}

/// RMSNorm with the weight `plus + norm`.
fn normed(mut x: Vec<f32>, norm: &[f32], plus: f32, eps: f32) -> Vec<f32> {
    let factor = 1.0 / (dot(&x, &x) / x.len() as f32 + eps).sqrt();
    x.iter_mut().zip(norm).for_each(|(x, weight)| *x *= factor * (plus + weight));
    x
}

/// Per channel, the sum of the keys weighted by the softmax of `gate + bias`. A row is a key, then
/// its gates.
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

/// Applies RoPE to pairs of elements.
fn rotate<'a>(
    pairs: impl Iterator<Item = (&'a mut f32, &'a mut f32)>,
    rope: &Rope,
    position: u32,
    final_len: u32,
) {
    for ((a, b), frequency) in pairs.zip(rope.frequencies(final_len)) {
        let (cos, sin) = rope.turn(*frequency, position);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
