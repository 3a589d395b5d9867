//! Attention in f32 for few query rows of a KV head (decode): vectors hold positions (Q K^T) or
//! numbers of a V row (P V), not query rows.
//!
//! Every sum is the same chain of fused multiply-adds as for many query rows, so the bits are equal;
//! `attention/tests.rs` compares decode with prefill.

use crate::attention::f32::Scores;
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, transpose_rows};
use crate::memory::kv_pool::rows::CHUNK;

/// Positions per group of transposed keys.
pub(crate) const KEYS: usize = 2 * LANES;

/// One number of the keys of [`KEYS`] positions.
pub(crate) type KeyColumns = [f32; KEYS];

/// Query rows of a KV head up to which these products pay.
pub(crate) const MAX_ROWS: usize = 8;

/// Transposes a chunk of K rows of `width` numbers to groups of [`KEYS`] positions: per group
/// one column per number.
pub(crate) fn transpose_keys(isa: Isa, rows: &[f32], width: usize, columns: &mut [KeyColumns]) {
    let mut tile = [[0f32; LANES]; LANES];
    for first in (0..CHUNK).step_by(LANES) {
        let group = &mut columns[first / KEYS * width..][..width];
        for at in (0..width).step_by(LANES) {
            let lines = std::array::from_fn(|n| rows[(first + n) * width + at..][..LANES].as_ptr().cast());
            // SAFETY: 16 rows of 16 numbers each, and a tile.
            unsafe { transpose_rows(isa, &lines, tile.as_mut_ptr().cast()) };
            for (column, numbers) in group[at..].iter_mut().zip(&tile) {
                column[first % KEYS..][..LANES].copy_from_slice(numbers);
            }
        }
    }
}

/// Rows per register block.
const AT_ONCE: usize = 2;

#[inline(always)]
fn scores_body(columns: &[KeyColumns], queries: &[[f32; LANES]], rows: usize, scores: &mut Scores) {
    for (group, columns) in columns.chunks_exact(queries.len()).enumerate() {
        for row in (0..rows).step_by(AT_ONCE) {
            let mut sums = [[0f32; KEYS]; AT_ONCE];
            for (keys, query) in columns.iter().zip(queries) {
                for (n, sums) in sums.iter_mut().enumerate() {
                    let q = query[row + n];
                    sums.iter_mut().zip(keys).for_each(|(sum, k)| *sum = q.mul_add(*k, *sum));
                }
            }
            for (n, sums) in sums.iter().enumerate() {
                for (scores, sum) in scores[group * KEYS..].iter_mut().zip(sums) {
                    scores[row + n] = *sum;
                }
            }
        }
    }
}

per_isa! {
    /// S = Q K^T for a chunk of transposed keys.
    scores(columns: &[KeyColumns], queries: &[[f32; LANES]], rows: usize, scores: &mut Scores) => scores_body
}

#[inline(always)]
fn values_body(values: &[f32], weights: &Scores, sums: &mut [f32], width: usize) {
    let whole = width / KEYS * KEYS;
    for (row, sums) in sums.chunks_exact_mut(width).enumerate() {
        let (parts, rest) = sums.split_at_mut(whole);
        for (part, sums) in parts.as_chunks_mut::<KEYS>().0.iter_mut().enumerate() {
            let mut all = *sums;
            for (values, weights) in values.chunks_exact(width).zip(weights) {
                let weight = weights[row];
                let values = &values[part * KEYS..][..KEYS];
                all.iter_mut().zip(values).for_each(|(sum, v)| *sum = weight.mul_add(*v, *sum));
            }
            *sums = all;
        }
        for (values, weights) in values.chunks_exact(width).zip(weights) {
            let values = &values[whole..];
            rest.iter_mut().zip(values).for_each(|(sum, v)| *sum = weights[row].mul_add(*v, *sum));
        }
    }
}

per_isa! {
    /// O += P V for V rows of `width` numbers.
    values(values: &[f32], weights: &Scores, sums: &mut [f32], width: usize) => values_body
}
