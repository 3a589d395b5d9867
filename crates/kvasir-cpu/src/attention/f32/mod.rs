//! Exact attention in f32 with online softmax, on K and V as stored: for models that are not
//! rounded to bf16, and as a reference for those that are.
//!
//! Per KV head and block of 16 query rows, over the KV chunks in rising order of position:
//!
//! 1. S = Q K^T, soft cap, mask. For few query rows K is transposed first, so that a vector holds
//!    positions instead of query rows.
//! 2. m_new = max(m, S); P = exp(S - m_new); l and O are rescaled by exp(m - m_new).
//! 3. O = O + P V. At the end the result is O / l, with the attention sink added to l.
//!
//! A score is one chain of fused multiply-adds over the head dimension, an output number one chain
//! over positions. Chunk bounds depend on positions alone. So a row's bits depend neither on batch
//! composition nor on how many rows are computed together.
//!
//! `decode.rs`: the products of few query rows.

pub(crate) mod decode;

use crate::attention::f32::decode::{KEYS, KeyColumns};
use crate::attention::layer::LayerAttention;
use crate::attention::softmax::state::ScoreScaling;
use crate::attention::views::{Chunk, View};
use crate::gemm::f32::fma::{StridedRows, add_products};
use crate::isa::dispatch::per_isa;
use crate::isa::tile::LANES;
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::rows::CHUNK;
use crate::rowwise::exp;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use std::ops::Range;

/// Query blocks per work item; they share each read of K and V.
const BLOCKS: usize = 4;

/// Scores, then attention weights, of a block and a chunk: a row per position, a column per query
/// row.
pub(crate) type Scores = [[f32; LANES]; CHUNK];

/// Online softmax state of a block of 16 query rows.
#[derive(Clone, Copy)]
pub(crate) struct RowStates {
    /// Number of visible entries, and first visible position, of each row.
    visible: [i32; LANES],
    from: [i32; LANES],
    max: [f32; LANES],
    sum: [f32; LANES],
    /// Factors of the results so far, from the newest step of the softmax.
    rescale: [f32; LANES],
}

impl RowStates {
    const NONE: Self = Self {
        visible: [0; LANES],
        from: [0; LANES],
        max: [f32::NEG_INFINITY; LANES],
        sum: [0.0; LANES],
        rescale: [1.0; LANES],
    };
}

/// Scratch of one worker.
#[derive(Default)]
struct F32Scratch {
    states: Vec<RowStates>,
    /// Per block a column vector for each number of the queries; accumulators O likewise.
    queries: AlignedVec<[f32; LANES]>,
    sums: AlignedVec<[f32; LANES]>,
    scores: AlignedVec<Scores>,
    /// A chunk's K rows, later its V rows, dequantized to f32; and the positions of its entries.
    rows: AlignedVec<f32>,
    positions: Vec<i32>,
    /// Of few query rows: a chunk's keys, transposed, and accumulators O, a row per query row.
    columns: AlignedVec<KeyColumns>,
    row_sums: AlignedVec<f32>,
}

/// A work item: some query rows of one KV head of a view, numbered token by token.
struct WorkItem<'v> {
    view: &'v View,
    head: usize,
    rows: Range<usize>,
}

/// Computes all tokens' attention. A row's chunks are aligned by position and reduced in that
/// order, so its bits do not depend on batch composition.
///
/// # Safety
/// As for [`LayerAttention::run`].
pub(crate) unsafe fn attend_f32(a: &LayerAttention<'_>, threads: &ThreadPool, out: &DisjointRows<'_>) {
    let kv_heads = a.facts.kv_heads;
    let rows = |view: &View| view.tokens * a.per_head();
    let blocks: usize = a.views.views.iter().map(|view| rows(view).div_ceil(LANES) * kv_heads).sum();
    // As many blocks per work item as leave enough items for all threads.
    let at_most = (blocks / (4 * threads.len())).clamp(1, BLOCKS) * LANES;
    let items = |view: &View| rows(view).div_ceil(at_most) * kv_heads;
    threads.each(a.views.views.iter().map(items).sum(), &|worker, mut item| {
        for view in &a.views.views {
            if item < items(view) {
                let first = item / kv_heads * at_most;
                let rows = first..rows(view).min(first + at_most);
                let item = WorkItem { view, head: item % kv_heads, rows };
                return a.f32_item(&item, worker.scratch(), out);
            }
            item -= items(view);
        }
    });
}

impl LayerAttention<'_> {
    /// Computes one work item: online softmax over the chunks of its view.
    fn f32_item(&self, item: &WorkItem<'_>, scratch: &mut F32Scratch, out: &DisjointRows<'_>) {
        let (kd, vd) = (self.facts.key_dim, self.facts.value_dim);
        let blocks = item.rows.len().div_ceil(LANES);
        scratch.queries.grow(blocks * kd);
        scratch.sums.grow(blocks * vd);
        scratch.scores.grow(blocks);
        scratch.rows.grow(CHUNK * kd.max(vd));
        scratch.sums[..blocks * vd].fill([0.0; LANES]);
        self.begin(item, scratch);
        let few = item.rows.len() <= decode::MAX_ROWS && kd.is_multiple_of(LANES);
        if few {
            scratch.columns.grow(kd * CHUNK / KEYS);
            scratch.row_sums.grow(item.rows.len() * vd);
            scratch.row_sums[..item.rows.len() * vd].fill(0.0);
        }
        let states = &scratch.states;
        let visible = states.iter().flat_map(|states| states.visible).max().unwrap_or(0);
        let seen = (0..item.rows.len()).map(|n| states[n / LANES].from[n % LANES]);
        let from = seen.min().unwrap_or(0);
        for chunk in self.views.chunks(item.view) {
            let n = chunk.len.min((visible as u32).saturating_sub(chunk.first)) as usize;
            if n == 0 {
                break;
            }
            let last = self.views.entries(chunk).take(n).last();
            if last.is_some_and(|(.., position)| (position as i32) < from) {
                continue;
            }
            self.stage(item, chunk, n, true, scratch);
            if few {
                self.decode_chunk(item, chunk, n, scratch);
                continue;
            }
            for block in 0..blocks {
                let scores = &mut scratch.scores[block][..n];
                scores.fill([0.0; LANES]);
                let rows = StridedRows { first: scratch.rows.as_ptr(), row: kd, number: 1 };
                // SAFETY: as many rows were staged.
                unsafe { add_products(self.isa, rows, &scratch.queries[block * kd..][..kd], scores) };
                let sums = &mut scratch.sums[block * vd..][..vd];
                let (states, first) = (&mut scratch.states[block], chunk.first as i32);
                softmax_step(self.isa, scores, first, &scratch.positions, self.scaling(), states);
                if states.rescale != [1.0; LANES] {
                    rescale(self.isa, &states.rescale, sums);
                }
            }
            self.stage(item, chunk, n, false, scratch);
            for block in 0..blocks {
                let rows = StridedRows { first: scratch.rows.as_ptr(), row: 1, number: vd };
                let sums = &mut scratch.sums[block * vd..][..vd];
                // SAFETY: as above; here V is read as its transpose.
                unsafe { add_products(self.isa, rows, &scratch.scores[block][..n], sums) };
            }
        }
        if few {
            for (row, sums) in scratch.row_sums.chunks_exact(vd).take(item.rows.len()).enumerate() {
                scratch.sums.iter_mut().zip(sums).for_each(|(columns, sum)| columns[row] = *sum);
            }
        }
        self.finish(item, scratch, out);
    }

    /// One chunk of a work item of few query rows, whose K rows are staged.
    fn decode_chunk(&self, item: &WorkItem<'_>, chunk: &Chunk, n: usize, scratch: &mut F32Scratch) {
        let (kd, vd, rows) = (self.facts.key_dim, self.facts.value_dim, item.rows.len());
        decode::transpose_keys(self.isa, &scratch.rows[..CHUNK * kd], kd, &mut scratch.columns);
        let scores = &mut scratch.scores[0];
        decode::scores(self.isa, &scratch.columns[..kd * CHUNK / KEYS], &scratch.queries[..kd], rows, scores);
        let states = &mut scratch.states[0];
        let first = chunk.first as i32;
        softmax_step(self.isa, &mut scores[..n], first, &scratch.positions, self.scaling(), states);
        let rescale = states.rescale;
        self.stage(item, chunk, n, false, scratch);
        let sums = &mut scratch.row_sums[..rows * vd];
        for (sums, rescale) in sums.chunks_exact_mut(vd).zip(rescale) {
            if rescale != 1.0 {
                sums.iter_mut().for_each(|sum| *sum *= rescale);
            }
        }
        decode::values(self.isa, &scratch.rows[..n * vd], &scratch.scores[0], sums, vd);
    }

    /// Token and query head of each row of a work item.
    fn rows(&self, item: &WorkItem<'_>) -> impl Iterator<Item = (usize, usize)> {
        let (group, first) = (self.per_head(), item.head * self.per_head());
        item.rows.clone().map(move |row| (row / group, first + row % group))
    }

    /// Loads the queries and masks, and resets the softmax state.
    fn begin(&self, item: &WorkItem<'_>, scratch: &mut F32Scratch) {
        let kd = self.facts.key_dim;
        let blocks = item.rows.len().div_ceil(LANES);
        scratch.states.clear();
        scratch.states.resize(blocks, RowStates::NONE);
        scratch.queries[..blocks * kd].fill([0.0; LANES]);
        for (n, (query, head)) in self.rows(item).enumerate() {
            let token = item.view.token + query;
            let (block, row) = (n / LANES, n % LANES);
            scratch.states[block].visible[row] = self.visible(item.view, query) as i32;
            scratch.states[block].from[row] = self.window_from(token);
            let q = &self.q[token * self.q_stride + head * kd..][..kd];
            for (column, &v) in scratch.queries[block * kd..].iter_mut().zip(q) {
                column[row] = v;
            }
        }
    }

    /// Dequantizes the first `n` K or V rows of a chunk.
    fn stage(&self, item: &WorkItem<'_>, chunk: &Chunk, n: usize, keys: bool, scratch: &mut F32Scratch) {
        let width = if keys { self.facts.key_dim } else { self.facts.value_dim };
        scratch.positions.clear();
        let places = scratch.rows.chunks_exact_mut(width.max(1));
        for ((pool, slot, position), row) in self.views.entries(chunk).take(n).zip(places) {
            let pool = self.pool(pool);
            let rows = if keys { &pool.keys } else { pool.read_as_values() };
            // SAFETY: the executor has checked the plan's slots, and writes come before reads.
            unsafe { rows.read(self.isa, slot, item.head, row) };
            scratch.positions.push(position as i32);
        }
    }

    /// Writes the normalized results O / l, with the attention sink in l.
    fn finish(&self, item: &WorkItem<'_>, scratch: &F32Scratch, out: &DisjointRows<'_>) {
        let vd = self.facts.value_dim;
        for (n, (query, head)) in self.rows(item).enumerate() {
            let (block, row) = (n / LANES, n % LANES);
            let (max, sum) = (scratch.states[block].max[row], scratch.states[block].sum[row]);
            // An attention sink adds to the denominator, and no value.
            let sink = self.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
            let largest = max.max(sink);
            let (rescaled, sink) = ((max - largest).exp(), (sink - largest).exp());
            let sum = sum * rescaled + sink;
            // SAFETY: a query row belongs to one work item.
            let to = unsafe { out.part(item.view.token + query, head * vd, vd) };
            for (to, sums) in to.iter_mut().zip(&scratch.sums[block * vd..]) {
                *to = if sum > 0.0 { sums[row] * rescaled / sum } else { 0.0 };
            }
        }
    }
}

/// Online softmax step: turns a block's dot products with the entries from `first` on into
/// attention weights, and rescales the denominators where the running maximum grew.
#[inline(always)]
fn softmax_step_body(
    scores: &mut [[f32; LANES]],
    first: i32,
    positions: &[i32],
    ScoreScaling { scale, soft_cap }: ScoreScaling,
    states: &mut RowStates,
) {
    let all = scores.as_flattened_mut().iter_mut();
    match soft_cap {
        Some(cap) => all.for_each(|s| *s = cap * (*s * scale / cap).tanh()),
        None => all.for_each(|s| *s *= scale),
    }
    let before = states.max;
    for ((entry, scores), &position) in (first..).zip(&mut *scores).zip(positions) {
        for row in 0..LANES {
            let seen = entry < states.visible[row] && position >= states.from[row];
            scores[row] = if seen { scores[row] } else { f32::NEG_INFINITY };
            states.max[row] = if scores[row] > states.max[row] { scores[row] } else { states.max[row] };
        }
    }
    for row in 0..LANES {
        let rescaled = exp(before[row] - states.max[row]);
        states.rescale[row] = if before[row] == states.max[row] { 1.0 } else { rescaled };
        states.sum[row] *= states.rescale[row];
    }
    for scores in scores {
        for row in 0..LANES {
            let weight = exp(scores[row] - states.max[row]);
            scores[row] = if scores[row] == f32::NEG_INFINITY { 0.0 } else { weight };
            states.sum[row] += scores[row];
        }
    }
}

per_isa! {
    softmax_step(scores: &mut [[f32; LANES]], first: i32, positions: &[i32], scaling: ScoreScaling, states: &mut RowStates) => softmax_step_body
}

#[inline(always)]
fn rescale_body(factors: &[f32; LANES], sums: &mut [[f32; LANES]]) {
    for sums in sums {
        for row in 0..LANES {
            sums[row] *= factors[row];
        }
    }
}

per_isa! {
    /// `sums[i][row] *= factors[row]`
    rescale(factors: &[f32; LANES], sums: &mut [[f32; LANES]]) => rescale_body
}
