//! Floats of four bits whose scales are powers of two, one for each 32 inputs of an output: MXFP4. A part begins with its scales' bytes; a line of
//! codes has eight inputs of 16 outputs, a word for each output.

use super::width::{Opened, PART, Width};
use crate::tile::LANES;
use kvasir_formats::encoding::{E2M1_DOUBLED, e8m0_half};

/// Writes one output's codes, as they are stored, and the bytes of their scales into its panel: eight inputs' are a word there, too.
pub(crate) fn put_codes(lane: usize, (codes, scales): (&[u8], &[u8]), panel: &mut [u8]) {
    let parts = panel.chunks_exact_mut(Width::Nibble.bytes());
    for (part, (codes, scale)) in parts.zip(codes.as_chunks::<{ PART / 2 }>().0.iter().zip(scales)) {
        let (powers, lines) = part.split_at_mut(LANES);
        powers[lane] = *scale;
        for (line, word) in lines.as_chunks_mut::<64>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
            line[lane * 4..lane * 4 + 4].copy_from_slice(word);
        }
    }
}

/// Writes one output's numbers into its panel's part.
#[inline(always)]
pub(super) fn put(lane: usize, values: &[f32; PART], part: &mut [u8]) {
    let (scales, codes) = part.split_at_mut(LANES);
    let power = common_power(values);
    scales[lane] = power;
    let nibbles = values.map(|v| code(v, power));
    let lines = codes.as_chunks_mut::<64>().0.iter_mut().zip(nibbles.as_chunks::<8>().0);
    for (line, nibbles) in lines {
        let mut word = 0;
        for (i, nibble) in nibbles.iter().enumerate() {
            word |= nibble << (i * 4);
        }
        line[lane * 4..lane * 4 + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// A number's power of two, its second bit and its sign. As f64 all numbers are normal.
#[inline(always)]
fn taken_apart(v: f32) -> (i64, i64, i64) {
    let bits = f64::from(v).to_bits() as i64;
    ((bits >> 52 & 0x7ff) - 1023, bits >> 51 & 1, bits >> 63 & 1)
}

/// The largest power of two that all numbers are whole multiples of, as its scale byte. No number has more than two bits.
#[inline(always)]
fn common_power(values: &[f32; PART]) -> u8 {
    let mut least = 127;
    for v in values {
        let (power, second, _) = taken_apart(*v);
        least = least.min(if *v == 0.0 { 127 } else { power - second });
    }
    (least + 128).max(0) as u8
}

/// The float of four bits that a number is, in units of its power of two. What is too large for an f32 was eight or twelve of the largest power.
#[inline(always)]
fn code(v: f32, scale: u8) -> u32 {
    let (power, second, negative) = taken_apart(v);
    let above = power + 128 - i64::from(scale);
    let size = if above == 0 { 1 } else { (2 * above + second).min(7) };
    (if v == 0.0 { 0 } else { size | negative << 3 }) as u32
}

/// What the scale bytes that a part begins with stand for.
#[inline(always)]
fn scales(part: &[u8]) -> [f32; LANES] {
    let mut scales = [0f32; LANES];
    for (scale, byte) in scales.iter_mut().zip(part) {
        *scale = e8m0_half(*byte);
    }
    scales
}

/// Opens a part by arithmetic: of a code's three lower bits two are an exponent.
#[inline(always)]
pub(super) fn open(part: &[u8], out: &mut Opened) {
    let (scale, codes) = (scales(part), &part[LANES..]);
    for (i, out) in out.iter_mut().enumerate() {
        let words = codes[i / 8 * 64..][..64].as_chunks::<4>().0;
        for lane in 0..LANES {
            let code = u32::from_le_bytes(words[lane]) >> (i % 8 * 4);
            let (exponent, last) = (code >> 1 & 3, code & 1);
            let whole = if exponent == 0 { last } else { (2 + last) << (exponent - 1) };
            let value = whole as f32 * scale[lane];
            out[lane] = f32::from_bits(value.to_bits() | code << 28 & 0x8000_0000);
        }
    }
}

/// The same in vectors.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn open_512(part: &[u8], out: &mut Opened) {
    use std::arch::x86_64::*;
    let table = E2M1_DOUBLED.map(f32::from);
    let part = &part[..Width::Nibble.bytes()];
    let scale = scales(part);
    // SAFETY: tables of 16, the part's lines, and places of the result.
    unsafe {
        let table = _mm512_loadu_ps(table.as_ptr());
        let scale = _mm512_loadu_ps(scale.as_ptr());
        for line in 0..PART / 8 {
            let mut codes = _mm512_loadu_si512(part.as_ptr().add(LANES + line * 64).cast());
            for i in 0..8 {
                // Of a place four bits count.
                let value = _mm512_mul_ps(_mm512_permutexvar_ps(codes, table), scale);
                _mm512_storeu_ps(out[line * 8 + i].as_mut_ptr(), value);
                codes = _mm512_srli_epi32::<4>(codes);
            }
        }
    }
}
