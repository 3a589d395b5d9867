//! Reference implementations of attention for tests: scalar, without staging, fusion or SIMD.
//!
//! `naive` is softmax attention in f64 over the stored rows. `bf16_dot_order` repeats the order of
//! summation of the bf16 dot-product kernels (`kernel/bf16_dot.rs`) number by number, for
//! bit-exact comparison.

use crate::attention::layer::LayerAttention;
use crate::attention::softmax::accumulators::normalization;
use crate::attention::softmax::state::{ChunkEntries, ChunkMask, MaskBounds, OnlineSoftmax, Scores, exp2};
use crate::isa::features::Isa;
use crate::isa::float16::{bf16, round_to_bf16};
use crate::isa::tile::{LANES, STEP};
use crate::memory::kv_pool::rows::{CHUNK, Rows};

/// Naive attention in f64 on the stored K and V rows.
pub(crate) fn naive(a: &LayerAttention<'_>, out: &mut [f32]) {
    let (kd, vd) = (a.facts.key_dim, a.facts.value_dim);
    let read = |rows: &Rows, slot, head, width| {
        let mut row = vec![0f32; width];
        // SAFETY: the tests' slots exist, and no thread writes them.
        unsafe { rows.read(Isa::PORTABLE, slot, head, &mut row) };
        row
    };
    for view in &a.views.views {
        for (query, head) in (0..view.tokens).flat_map(|query| (0..a.heads).map(move |head| (query, head))) {
            let token = view.token + query;
            let (from, kv_head) = (a.window_from(token) as u32, head / a.per_head());
            let q = &a.q[token * a.q_stride + head * kd..][..kd];
            let seen = a
                .views
                .chunks(view)
                .iter()
                .flat_map(|chunk| a.views.entries(chunk))
                .take(a.visible(view, query))
                .filter(|entry| entry.2 >= from);
            let seen: Vec<(f64, Vec<f32>)> = seen
                .map(|(pool, slot, _)| {
                    let pool = a.pool(pool);
                    let key = read(&pool.keys, slot, kv_head, kd);
                    let dot: f64 = q.iter().zip(key).map(|(&q, k)| f64::from(q) * f64::from(k)).sum();
                    let score = dot * f64::from(a.scale);
                    let cap = |cap: f32| f64::from(cap) * (score / f64::from(cap)).tanh();
                    (a.soft_cap.map_or(score, cap), read(pool.read_as_values(), slot, kv_head, vd))
                })
                .collect();
            let sink = a.sinks.map(|sinks| f64::from(sinks[head]));
            let max = seen.iter().map(|(s, _)| *s).chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = seen.iter().map(|(s, _)| *s).chain(sink).map(|s| (s - max).exp()).sum();
            for i in 0..vd {
                let sum: f64 = seen.iter().map(|(s, v)| (s - max).exp() * f64::from(v[i])).sum();
                out[(token * a.heads + head) * vd + i] = (sum / total) as f32;
            }
        }
    }
}

/// `sum + a1 * b1 + a0 * b0`: one bf16 pair dot product, the later number first.
fn add_pair(sum: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
    a[0].mul_add(b[0], a[1].mul_add(b[1], sum))
}

/// A score: an accumulator per word of a 64-byte line, reduced by halves.
fn score(key: &[f32], query: &[f32]) -> f32 {
    let mut chains = vec![0f32; LANES];
    for (key, query) in key.chunks(STEP).zip(query.chunks(STEP)) {
        let pairs = key.as_chunks::<2>().0.iter().zip(query.as_chunks::<2>().0);
        chains.iter_mut().zip(pairs).for_each(|(chain, (k, q))| *chain = add_pair(*chain, *k, *q));
    }
    by_halves(chains)
}

fn by_halves(mut chains: Vec<f32>) -> f32 {
    while chains.len() > 1 {
        let upper = chains.split_off(chains.len() / 2);
        chains.iter_mut().zip(upper).for_each(|(low, high)| *low += high);
    }
    chains[0]
}

/// Attention in the summation order of `kernel/bf16_dot.rs`, number by number.
pub(crate) fn bf16_dot_order(a: &LayerAttention<'_>, out: &mut [f32]) {
    let (kd, vd) = (a.facts.key_dim, a.facts.value_dim);
    let read = |rows: &Rows, slot, head, width: usize| {
        let (mut wide, mut row) = (vec![0f32; width], vec![0u16; width]);
        // SAFETY: the tests' slots exist, and no thread writes them.
        unsafe { rows.read_bf16(Isa::PORTABLE, slot, head, &mut wide, &mut row) };
        row.into_iter().map(bf16).chain(std::iter::repeat(0.0)).take(width.next_multiple_of(STEP)).collect()
    };
    for view in &a.views.views {
        for (query, head) in (0..view.tokens).flat_map(|query| (0..a.heads).map(move |head| (query, head))) {
            let token = view.token + query;
            let (from, kv_head) = (a.window_from(token) as u32, head / a.per_head());
            let mut q = vec![0u16; kd];
            round_to_bf16(Isa::PORTABLE, &a.q[token * a.q_stride + head * kd..][..kd], &mut q);
            q.resize(kd.next_multiple_of(STEP), 0);
            let q: Vec<f32> = q.into_iter().map(bf16).collect();
            let mut softmax = OnlineSoftmax::default();
            softmax.run.max = [f32::NEG_INFINITY; LANES];
            let mut sums = vec![0f32; vd];
            for chunk in a.views.chunks(view) {
                let mut scores: Scores = [[0.0; LANES]; CHUNK];
                let mut values = vec![vec![0f32; vd.next_multiple_of(STEP)]; CHUNK];
                // Masks by entry: 0 is visible, 1 is not.
                let mut rows = ChunkEntries { entry: [1; CHUNK], position: [0; CHUNK] };
                let bounds = MaskBounds { visible: [1; LANES], from: [0; LANES] };
                for (number, (pool, slot, position)) in (chunk.first as usize..).zip(a.views.entries(chunk)) {
                    if number < a.visible(view, query) && position >= from {
                        let (pool, row) = (a.pool(pool), position as usize % CHUNK);
                        let key: Vec<f32> = read(&pool.keys, slot, kv_head, kd);
                        (scores[row], rows.entry[row]) = ([score(&key, &q); LANES], 0);
                        values[row] = read(pool.read_as_values(), slot, kv_head, vd);
                    }
                }
                let mask = ChunkMask { entries: &rows, bounds: &bounds };
                softmax.begin(Isa::PORTABLE, &mut scores, Some(mask), a.scaling());
                let weights = scores.map(|row| exp2(row[0].mul_add(softmax.scale, -softmax.base[0])));
                // An accumulator for each position modulo 16, reduced by halves.
                let chain =
                    |place| (place..CHUNK).step_by(LANES).map(|row| weights[row]).reduce(|a, b| a + b);
                let total = by_halves((0..LANES).filter_map(chain).collect());
                softmax.run.sum[0] = softmax.run.sum[0].mul_add(softmax.run.rescale[0], total);
                let rounded = |weight: f32| bf16(((weight.to_bits() + 0x8000) >> 16) as u16);
                for (d, sum) in sums.iter_mut().enumerate() {
                    *sum *= softmax.run.rescale[0];
                    for (pair, values) in weights.as_chunks::<2>().0.iter().zip(values.as_chunks::<2>().0) {
                        *sum = add_pair(*sum, pair.map(rounded), values.each_ref().map(|row| row[d]));
                    }
                }
            }
            let sink = a.sinks.map(|sinks| sinks[head]);
            let factor = normalization(softmax.run.max[0], softmax.run.sum[0], sink);
            let to = &mut out[(token * a.heads + head) * vd..][..vd];
            to.iter_mut().zip(&sums).for_each(|(to, sum)| *to = sum * factor);
        }
    }
}
