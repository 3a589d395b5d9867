//! [`ResolvedKeyPool`]: computes the keys of key pools, and compressed entries, from cached rows.
//!
//! Each channel is summed separately, over the entries of a pool in order of position. So a key
//! depends only on the rows of its pool and, with two parts, of the previous one.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::memory::kv_pool::Pool;
use crate::ops::key_pools::KeyPools;
use crate::rowwise::{RotaryPart, exp, norm, rotate};
use crate::threads::pool::ThreadPool;
use kvasir_program::{NormKind, Pairs, Rope};
use std::sync::Arc;

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
/// gates. `bias` has the biases of the gates, `[size, parts * dim]`.
#[derive(Clone, Copy)]
pub(crate) struct GatedValues<'a> {
    pub(crate) start: usize,
    pub(crate) dim: usize,
    pub(crate) parts: usize,
    pub(crate) bias: &'a [f32],
}

/// Cached rows of the entries of one pool, of `width` elements each, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct PoolRows<'a> {
    pub(crate) width: usize,
    /// Rows of the previous pool; empty if there is none or the key does not depend on it.
    pub(crate) previous: &'a [f32],
    pub(crate) own: &'a [f32],
}

/// Channels that are summed at a time, so that their sums stay in registers.
const BLOCK: usize = 16;

#[inline(always)]
fn gated_sum_body(rows: PoolRows<'_>, values: GatedValues<'_>, y: &mut [f32]) {
    let GatedValues { start, dim, parts, bias } = values;
    let width = parts * dim;
    // A pool uses the last part of its own rows and, with two parts, the first part of the rows of
    // the previous pool.
    let sources = [(rows.previous, 0), (rows.own, (parts - 1) * dim)];
    for (block, y) in y.chunks_mut(BLOCK).enumerate() {
        let n = y.len();
        let (mut max, mut sum, mut total) = ([f32::NEG_INFINITY; BLOCK], [0f32; BLOCK], [0f32; BLOCK]);
        for (rows_of, part) in sources {
            let at = part + block * BLOCK;
            for (entry, row) in rows_of.chunks_exact(rows.width).enumerate() {
                let gates = &row[start + width + at..][..n];
                let biases = &bias[entry * width + at..][..n];
                for ((max, gate), bias) in max.iter_mut().zip(gates).zip(biases) {
                    let gate = gate + bias;
                    *max = if gate > *max { gate } else { *max };
                }
            }
        }
        for (rows_of, part) in sources {
            let at = part + block * BLOCK;
            for (entry, row) in rows_of.chunks_exact(rows.width).enumerate() {
                let (gates, values) = (&row[start + width + at..][..n], &row[start + at..][..n]);
                let biases = &bias[entry * width + at..][..n];
                for channel in 0..n {
                    let weight = exp(gates[channel] + biases[channel] - max[channel]);
                    sum[channel] += weight;
                    total[channel] = weight.mul_add(values[channel], total[channel]);
                }
            }
        }
        for channel in 0..n {
            y[channel] = total[channel] / sum[channel];
        }
    }
}

per_isa! {
    /// Per channel, the sum of values weighted by the softmax of `gate + bias`.
    gated_sum(rows: PoolRows<'_>, values: GatedValues<'_>, y: &mut [f32]) => gated_sum_body
}

#[inline(always)]
fn mean_body(rows: &[f32], count: f32, y: &mut [f32]) {
    y.fill(0.0);
    for row in rows.chunks_exact(y.len()) {
        y.iter_mut().zip(row).for_each(|(y, x)| *y += x);
    }
    y.iter_mut().for_each(|y| *y /= count);
}

per_isa! {
    /// Mean of `count` rows.
    mean(rows: &[f32], count: f32, y: &mut [f32]) => mean_body
}

impl ResolvedKeyPool<'_> {
    /// Elements of a key.
    fn key_width(&self) -> usize {
        match self.combine {
            ResolvedPooling::Gated(values) | ResolvedPooling::Compressed { values, .. } => values.dim,
            ResolvedPooling::Mean { norm, .. } => norm.len(),
        }
    }

    /// Whether a key depends on the rows of the previous pool.
    fn reads_previous(&self) -> bool {
        matches!(self.combine, ResolvedPooling::Compressed { values, .. } if values.parts == 2)
    }

    /// Computes the key of a complete pool whose first position is `position`.
    fn key(&self, isa: Isa, rows: PoolRows<'_>, position: u32, final_len: u32, y: &mut [f32]) {
        let (weights, kind, eps) = match self.combine {
            ResolvedPooling::Gated(values) => return gated_sum(isa, rows, values, y),
            ResolvedPooling::Mean { norm, plus, eps, .. } => {
                mean(isa, rows.own, self.size as f32, y);
                (norm, if plus == 0.0 { NormKind::Rms } else { NormKind::RmsPlusOne }, eps)
            }
            ResolvedPooling::Compressed { values, norm, eps, .. } => {
                gated_sum(isa, rows, values, y);
                (norm, NormKind::Rms, eps)
            }
        };
        let unnormed = y.to_vec();
        norm(isa, &unnormed, y, unnormed.len(), kind, Some(weights), None, eps);
        let (rope, start, pairs) = match self.combine {
            ResolvedPooling::Compressed { rope, .. } => (rope, y.len() - rope.dims(), Pairs::Interleaved),
            ResolvedPooling::Mean { rope, .. } => (rope, 0, Pairs::Half),
            ResolvedPooling::Gated(_) => return,
        };
        let turns = rope.frequencies(final_len).iter().map(|frequency| rope.turn(*frequency, position));
        let (cos, sin): (Vec<f32>, Vec<f32>) = turns.unzip();
        let part = RotaryPart { group: y.len(), start, pairs };
        rotate(isa, y, part, &cos, &sin);
    }
}

/// The cached rows of one layer from which keys are computed.
#[derive(Clone, Copy)]
pub(crate) struct IndexRows<'a> {
    pub(crate) pools: &'a [Arc<Pool>],
    pub(crate) layer: usize,
    /// Number of leading elements of a row that are read.
    pub(crate) width: usize,
}

impl IndexRows<'_> {
    /// Reads the rows of all entries of a pool.
    ///
    /// # Safety
    /// The slots of the entries must exist, and no other thread may write them.
    unsafe fn read(&self, isa: Isa, pools: &KeyPools, pool: u32, to: &mut Vec<f32>) {
        to.clear();
        for (id, slot) in pools.slots(pool) {
            let at = to.len();
            to.resize(at + self.width, 0.0);
            if let Some(rows) = &self.pools[id.0 as usize].layers[self.layer].index {
                // SAFETY: upheld by the caller.
                unsafe { rows.read(isa, slot, 0, &mut to[at..]) };
            }
        }
    }
}

/// Pools per work item.
const POOLS_PER_ITEM: usize = 16;

/// The pools of one layer, and how their keys are computed.
#[derive(Clone, Copy)]
pub(crate) struct KeySource<'a> {
    pub(crate) pools: &'a KeyPools,
    pub(crate) rows: IndexRows<'a>,
    /// `None` if a pool is one entry, whose key is the cached row.
    pub(crate) key_pool: Option<ResolvedKeyPool<'a>>,
    /// Maximum length of each row's sequence.
    pub(crate) final_lens: &'a [u32],
}

impl KeySource<'_> {
    /// Computes the keys of these pools, in parallel, and passes each to `sink` with its index in
    /// `wanted`.
    ///
    /// # Safety
    /// The slots of the pools must exist, and no other thread may write them.
    pub(crate) unsafe fn compute(
        &self,
        threads: &ThreadPool,
        isa: Isa,
        wanted: &[u32],
        sink: &(dyn Fn(usize, &[f32]) + Sync),
    ) {
        let Self { pools, rows, .. } = *self;
        threads.each(wanted.len().div_ceil(POOLS_PER_ITEM), &|_, item| {
            let (mut own, mut previous) = (Vec::new(), Vec::new());
            let mut key = vec![0.0; self.key_pool.map_or(rows.width, |key_pool| key_pool.key_width())];
            let reads_previous = self.key_pool.is_some_and(|key_pool| key_pool.reads_previous());
            let first = item * POOLS_PER_ITEM;
            // The pool whose rows are in `own`.
            let mut last = None;
            for (at, pool) in (first..).zip(&wanted[first..wanted.len().min(first + POOLS_PER_ITEM)]) {
                match pools.pool(*pool).previous.filter(|_| reads_previous) {
                    None => previous.clear(),
                    before if before == last => std::mem::swap(&mut own, &mut previous),
                    // SAFETY: upheld by the caller.
                    Some(before) => unsafe { rows.read(isa, pools, before, &mut previous) },
                }
                // SAFETY: as above.
                unsafe { rows.read(isa, pools, *pool, &mut own) };
                last = Some(*pool);
                let Some(key_pool) = self.key_pool else {
                    sink(at, &own);
                    continue;
                };
                let pool_rows = PoolRows { width: rows.width, previous: &previous, own: &own };
                let final_len = self.final_lens[pools.pool(*pool).row as usize];
                key_pool.key(isa, pool_rows, pools.position(*pool), final_len, &mut key);
                sink(at, &key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;
    use kvasir_testkit::Random;

    /// The definition of a gated sum, in f64.
    fn definition(rows: PoolRows<'_>, values: GatedValues<'_>, channel: usize) -> f64 {
        let GatedValues { start, dim, parts, bias } = values;
        let width = parts * dim;
        let (mut sum, mut total) = (0.0, 0.0);
        for (rows_of, at) in [(rows.previous, channel), (rows.own, (parts - 1) * dim + channel)] {
            for (entry, row) in rows_of.chunks_exact(rows.width).enumerate() {
                let gate = f64::from(row[start + width + at]) + f64::from(bias[entry * width + at]);
                sum += gate.exp();
                total += gate.exp() * f64::from(row[start + at]);
            }
        }
        total / sum
    }

    #[test]
    fn gated_sums_match_f64_with_equal_bits_on_every_isa() {
        for seed in 0..60 {
            let random = &mut Random::new(seed);
            let (size, dim, parts) = (random.between(1, 9) as usize, random.pick(&[1, 5, 16, 40, 64]), 1);
            let parts = parts + random.below(2) as usize;
            let (start, after) = (random.between(0, 7) as usize, random.between(0, 3) as usize);
            let width = start + 2 * parts * dim + after;
            let numbers = |random: &mut Random, count| -> Vec<f32> {
                (0..count).map(|_| 4.0 * random.unit() - 2.0).collect()
            };
            let bias = numbers(random, size * parts * dim);
            let own = numbers(random, size * width);
            let has_previous = parts == 2 && random.chance(70);
            let previous = numbers(random, if has_previous { size * width } else { 0 });
            let rows = PoolRows { width, previous: &previous, own: &own };
            let values = GatedValues { start, dim, parts, bias: &bias };
            let mut portable = vec![0.0; dim];
            gated_sum(Isa::PORTABLE, rows, values, &mut portable);
            for (channel, found) in portable.iter().enumerate() {
                let error = (f64::from(*found) - definition(rows, values, channel)).abs();
                assert!(error < 1e-5, "seed {seed}, channel {channel}: {error}");
            }
            for isa in isas() {
                let mut y = vec![0.0; dim];
                gated_sum(isa, rows, values, &mut y);
                assert!(y == portable, "seed {seed} on {isa}");
            }
        }
    }
}
