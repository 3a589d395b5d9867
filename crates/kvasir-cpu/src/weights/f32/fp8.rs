//! FP8 E4M3 weights with an f32 scale per 32 inputs: packing and dequantization to f32.
//!
//! Layout of a part (32 inputs x 16 outputs): 16 f32 scales, then 32 lines of 16 codes, one input
//! each.
//!
//! Trick: an E4M3 code shifted into the exponent and mantissa bits of an f16 has 1/256 of its
//! value, subnormal or not. Multiplying by the power of two is exact, so the result is `code *
//! scale` rounded once.

use crate::isa::float16::half;
use crate::isa::tile::LANES;
use crate::weights::f32::{Dequantized, PART};

/// Bytes of one part of a panel.
pub(crate) const PART_BYTES: usize = LANES * 4 + PART * LANES;

/// Factor from the value of an f16 with a code's bits to the value of the code.
const UNIT: f32 = 256.0;
/// The NaN code without its sign; also the mask of the magnitude bits.
const NAN: u8 = 0x7f;

/// Packs one output's stored codes into lane `lane` of its panel; `scale(n)` is the scale of part
/// `n`.
pub(crate) fn put_codes(lane: usize, codes: &[u8], scale: impl Fn(usize) -> f32, panel: &mut [u8]) {
    let parts = panel.chunks_exact_mut(PART_BYTES).zip(codes.chunks(PART));
    for (n, (part, codes)) in parts.enumerate() {
        let (scales, lines) = part.split_at_mut(LANES * 4);
        scales[lane * 4..lane * 4 + 4].copy_from_slice(&scale(n).to_le_bytes());
        for (line, code) in lines.as_chunks_mut::<LANES>().0.iter_mut().zip(codes) {
            line[lane] = *code;
        }
    }
}

/// Dequantizes a part with scalar arithmetic.
#[inline(always)]
pub(crate) fn dequantize(part: &[u8], out: &mut Dequantized) {
    let (scales, codes) = part.split_at(LANES * 4);
    let mut scale = [0f32; LANES];
    for (scale, bytes) in scale.iter_mut().zip(scales.as_chunks::<4>().0) {
        *scale = f32::from_le_bytes(*bytes);
    }
    for (out, codes) in out.iter_mut().zip(codes.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let (size, sign) = (u16::from(codes[lane] & NAN), u16::from(codes[lane] & !NAN));
            let value = half(size << 7 | sign << 8) * UNIT * scale[lane];
            out[lane] = if size == u16::from(NAN) { f32::NAN } else { value };
        }
    }
}

/// Dequantizes a part with AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn dequantize_512(part: &[u8], out: &mut Dequantized) {
    use std::arch::x86_64::*;
    let (scales, codes) = part.split_at(LANES * 4);
    let (unit, sizes) = (_mm512_set1_ps(UNIT), _mm256_set1_epi16(i16::from(NAN)));
    // SAFETY: 16 scales, 16 codes per line, and rows of the result.
    unsafe {
        let scale = _mm512_loadu_ps(scales.as_ptr().cast());
        for (out, codes) in out.iter_mut().zip(codes.as_chunks::<LANES>().0) {
            let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.as_ptr().cast()));
            let size = _mm256_and_si256(codes, sizes);
            let nan = _mm256_cmpeq_epi16_mask(size, sizes);
            let sign = _mm256_slli_epi16::<8>(_mm256_andnot_si256(sizes, codes));
            let value = _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16::<7>(size), sign));
            let value = _mm512_mul_ps(_mm512_mul_ps(value, unit), scale);
            let value = _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(f32::NAN));
            _mm512_storeu_ps(out.as_mut_ptr(), value);
        }
    }
}
