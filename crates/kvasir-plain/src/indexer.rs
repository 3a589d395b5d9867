//! Reference indexer of sparse attention: selects the best entries, or pools of entries, per query.

use crate::attention::Pools;
use crate::mask::Reads;
use crate::math::{dot, largest, rotate_pairs, softmax, turns};
use crate::pool::Part;
use kvasir_program::{LayerId, Pairs, Rope};
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
    Gated(GatedValues<'a>),
    Mean { norm: &'a [f32], plus: f32, eps: f32, rope: &'a Rope },
    Compressed { values: GatedValues<'a>, norm: &'a [f32], eps: f32, rope: &'a Rope },
}

/// The values and gates in a cached row: from element `start`, `parts * dim` values, then as many
/// gates. `bias` has the biases of the gates, [size, parts * dim].
#[derive(Clone, Copy)]
pub(crate) struct GatedValues<'a> {
    pub(crate) start: usize,
    pub(crate) dim: usize,
    pub(crate) parts: usize,
    pub(crate) bias: &'a [f32],
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
        reads: &Reads<'_>,
        visible: &[u32],
        q: &[f32],
        weights: Option<&[f32]>,
        final_len: u32,
    ) -> Vec<u32> {
        let size = self.pool.map_or(1, |pool| pool.size);
        let (complete, rest) = match self.pool {
            None => (visible.chunks(1).collect(), Vec::new()),
            Some(pool) => pool.split(reads, visible),
        };
        let row = |entry: &u32| {
            let (pool, slot, _) = reads.entries[*entry as usize];
            self.kv_pools.row(self.layer, Part::Index, (pool, slot))
        };
        let score = |index: usize| {
            let key: Cow<'_, [f32]> = match self.pool {
                None => row(&complete[index][0]).into(),
                Some(pool) => pool.key(&complete, index, reads, final_len, row).into(),
            };
            let heads = q.chunks(key.len()).enumerate();
            let weight = |head: usize| weights.map_or(1.0, |weights| weights[head]);
            heads.map(|(head, q)| weight(head) * dot(q, &key).max(0.0)).sum()
        };
        let scores: Vec<f32> = (0..complete.len()).map(score).collect();
        let best = largest(&scores, self.top_k / size);
        let chosen = best.into_iter().map(|index| complete[index as usize]);
        let mut entries: Vec<u32> = chosen.flatten().chain(&rest).copied().collect();
        entries.sort_unstable();
        entries
    }
}

impl ResolvedKeyPool<'_> {
    /// Number of the pool that an entry belongs to.
    fn number(&self, reads: &Reads<'_>, entry: u32) -> usize {
        reads.entries[entry as usize].2 as usize / self.size
    }

    /// Splits the visible entries into complete pools and the other entries. Where positions have
    /// gaps, pools after an incomplete one can be complete.
    pub(crate) fn split<'a>(&self, reads: &Reads<'_>, visible: &'a [u32]) -> (Vec<&'a [u32]>, Vec<u32>) {
        let (mut complete, mut rest) = (Vec::new(), Vec::new());
        for entries in visible.chunk_by(|a, b| self.number(reads, *a) == self.number(reads, *b)) {
            if entries.len() == self.size {
                complete.push(entries);
            } else {
                rest.extend_from_slice(entries);
            }
        }
        (complete, rest)
    }

    /// The key of the pool `complete[index]`. `row` returns the cached row of an entry.
    pub(crate) fn key<'r>(
        &self,
        complete: &[&[u32]],
        index: usize,
        reads: &Reads<'_>,
        final_len: u32,
        row: impl Fn(&u32) -> &'r [f32],
    ) -> Vec<f32> {
        let rows_of = |pool: usize| -> Vec<&'r [f32]> { complete[pool].iter().map(&row).collect() };
        let rows = rows_of(index);
        let turns_of = |rope: &Rope| turns(rope, reads.entries[complete[index][0] as usize].2, final_len);
        match self.combine {
            ResolvedPooling::Gated(values) => values.weighted_sum(&[], &rows),
            ResolvedPooling::Mean { norm, plus, eps, rope } => {
                let sum = |channel: usize| rows.iter().map(|row| row[channel]).sum::<f32>();
                let sums = (0..norm.len()).map(|channel| sum(channel) / self.size as f32);
                let mut key = normed(sums.collect(), norm, plus, eps);
                rotate_pairs(&mut key[..rope.dims()], &turns_of(rope), Pairs::Half);
                key
            }
            ResolvedPooling::Compressed { values, norm, eps, rope } => {
                let number = |index: usize| self.number(reads, complete[index][0]);
                let before = index.checked_sub(1).filter(|before| number(*before) + 1 == number(index));
                let previous = before.map_or_else(Vec::new, rows_of);
                let mut key = normed(values.weighted_sum(&previous, &rows), norm, 0.0, eps);
                let start = values.dim - rope.dims();
                rotate_pairs(&mut key[start..], &turns_of(rope), Pairs::Interleaved);
                key
            }
        }
    }
}

impl GatedValues<'_> {
    /// Per channel, the sum of values weighted by the softmax of `gate + bias`. `previous` has the
    /// rows of the pool before.
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
