//! 16-bit weights for small matrices: two int8 planes per superblock, requantized from any
//! encoding.
//!
//! `w = unit * (256 * high + low)`. Each plane is an ordinary superblock of unpacked bytes, so
//! kernels need no special case: both planes meet the same activations, and their sums add up.

use super::format::{Format, SUPER};
use super::source::unit;
use crate::halves::high_half;
use crate::panels::Encoded;
use kvasir_formats::{DType, encoding};

/// Largest 16-bit code whose rounded high byte is still below 128.
const MOST: f32 = 32_639.0;

/// Packs both planes of 256 inputs of `rows` into `out`. Absent weights and NaNs become zero.
#[inline(always)]
pub(super) fn pack(dtype: DType, rows: &Encoded<'_>, out: &mut [u8]) {
    let (high, low) = out.split_at_mut(Format::FINE.bytes());
    for (lane, row) in rows.iter().enumerate() {
        let mut weights = [0f32; SUPER];
        let there = row.len() / dtype.block_bytes() * dtype.block_len();
        if encoding::dequantize(dtype, row, &mut weights[..there]).is_err() {
            weights.fill(0.0);
        }
        let largest = weights.iter().fold(0f32, |most, w| most.max(w.abs()));
        let (one, inverse) = unit(largest / MOST);
        set_unit(high, lane, one * 256.0);
        set_unit(low, lane, one);
        for (i, w) in weights.iter().enumerate() {
            // The cast turns NaN into zero.
            let whole = (w * inverse).round_ties_even() as i32;
            let rounded = (whole + 128) >> 8;
            let at = Format::FINE.codes_at() + i / 4 * 64 + lane * 4 + i % 4;
            (high[at], low[at]) = (rounded as u8 ^ 0x80, (whole - rounded * 256) as u8 ^ 0x80);
        }
    }
}

/// Stores a lane's scale as bf16. `unit` must be exact in bf16.
#[inline(always)]
fn set_unit(plane: &mut [u8], lane: usize, unit: f32) {
    plane[lane * 2..lane * 2 + 2].copy_from_slice(&high_half(unit).to_le_bytes());
}
