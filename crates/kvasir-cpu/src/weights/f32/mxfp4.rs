//! MXFP4 weights (E2M1 codes, one E8M0 scale per 32 inputs): packing and dequantization to f32.
//!
//! Layout of a part (32 inputs x 16 outputs): 16 scale bytes, then four lines of codes. A line
//! holds eight inputs of 16 outputs, one 32-bit word per output. Dequantized values are exact;
//! `width.rs` tests every instruction set.

use crate::isa::tile::LANES;
use crate::weights::f32::{Dequantized, PART};
use kvasir_formats::encoding::{E2M1_DOUBLED, e8m0_half};

/// Bytes of one part of a panel.
pub(crate) const PART_BYTES: usize = LANES + PART * LANES / 2;

/// Packs one output's stored codes and scale bytes into lane `lane` of its panel.
pub(crate) fn put_codes(lane: usize, (codes, scales): (&[u8], &[u8]), panel: &mut [u8]) {
    let parts = panel.chunks_exact_mut(PART_BYTES);
    for (part, (codes, scale)) in parts.zip(codes.as_chunks::<{ PART / 2 }>().0.iter().zip(scales)) {
        let (powers, lines) = part.split_at_mut(LANES);
        powers[lane] = *scale;
        for (line, word) in lines.as_chunks_mut::<64>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
            line[lane * 4..lane * 4 + 4].copy_from_slice(word);
        }
    }
}

/// Re-encodes one output's 32 values, which must be exact MXFP4 values, into its part.
#[inline(always)]
pub(crate) fn encode(lane: usize, values: &[f32; PART], part: &mut [u8]) {
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

/// `(exponent, first mantissa bit, sign)`. In f64 every f32 value is a normal number.
#[inline(always)]
fn taken_apart(v: f32) -> (i64, i64, i64) {
    let bits = f64::from(v).to_bits() as i64;
    ((bits >> 52 & 0x7ff) - 1023, bits >> 51 & 1, bits >> 63 & 1)
}

/// Scale byte of the largest power of two that divides all values. E2M1 values have at most two
/// significant bits.
#[inline(always)]
fn common_power(values: &[f32; PART]) -> u8 {
    let mut least = 127;
    for v in values {
        let (power, second, _) = taken_apart(*v);
        least = least.min(if *v == 0.0 { 127 } else { power - second });
    }
    (least + 128).max(0) as u8
}

/// The E2M1 code of `v` in units of `scale`. Values that overflowed to infinity were 8 or 12 times
/// the largest scale.
#[inline(always)]
fn code(v: f32, scale: u8) -> u32 {
    let (power, second, negative) = taken_apart(v);
    let above = power + 128 - i64::from(scale);
    let size = if above == 0 { 1 } else { (2 * above + second).min(7) };
    (if v == 0.0 { 0 } else { size | negative << 3 }) as u32
}

/// Decodes the 16 E8M0 scales at the start of a part.
#[inline(always)]
fn scales(part: &[u8]) -> [f32; LANES] {
    let mut scales = [0f32; LANES];
    for (scale, byte) in scales.iter_mut().zip(part) {
        *scale = e8m0_half(*byte);
    }
    scales
}

/// Dequantizes a part with scalar arithmetic: two of the code's three lower bits are the exponent.
#[inline(always)]
pub(crate) fn dequantize(part: &[u8], out: &mut Dequantized) {
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

/// Dequantizes a part with AVX-512: a 16-entry table lookup, then one multiplication by the scale.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn dequantize_512(part: &[u8], out: &mut Dequantized) {
    use std::arch::x86_64::*;
    let table = E2M1_DOUBLED.map(f32::from);
    let part = &part[..PART_BYTES];
    let scale = scales(part);
    // SAFETY: tables of 16 floats, lines of the part, and rows of the result.
    unsafe {
        let table = _mm512_loadu_ps(table.as_ptr());
        let scale = _mm512_loadu_ps(scale.as_ptr());
        for line in 0..PART / 8 {
            let mut codes = _mm512_loadu_si512(part.as_ptr().add(LANES + line * 64).cast());
            for i in 0..8 {
                // The permutation uses the low four bits of each lane only.
                let value = _mm512_mul_ps(_mm512_permutexvar_ps(codes, table), scale);
                _mm512_storeu_ps(out[line * 8 + i].as_mut_ptr(), value);
                codes = _mm512_srli_epi32::<4>(codes);
            }
        }
    }
}
