//! Floats of eight bits, four of them an exponent, and a scale for each 32 inputs of an output. A part begins with its scales; each line of codes has
//! four inputs, one after the other, of 16 outputs.
//!
//! Moved to the places that an f16 has for them, a code's bits say 1/256 of its value, subnormal or not. Products with powers of two are exact, so a
//! number is the product of code and scale rounded once, as if both were f32.

use super::width::{Opened, PART, Width};
use crate::halves::half;
use crate::tile::LANES;

/// What an f16 with a code's bits must be multiplied with.
const UNIT: f32 = 256.0;
/// The code that is no number, but for its sign.
const NAN: u8 = 0x7f;

/// Writes one output's codes, as they are stored, into its panel, each part's with the scale of that part.
pub(crate) fn put_codes(lane: usize, codes: &[u8], scale: impl Fn(usize) -> f32, panel: &mut [u8]) {
    let parts = panel.chunks_exact_mut(Width::Octet.bytes()).zip(codes.chunks(PART));
    for (n, (part, codes)) in parts.enumerate() {
        let (scales, lines) = part.split_at_mut(LANES * 4);
        scales[lane * 4..lane * 4 + 4].copy_from_slice(&scale(n).to_le_bytes());
        for (line, code) in lines.as_chunks_mut::<LANES>().0.iter_mut().zip(codes) {
            line[lane] = *code;
        }
    }
}

/// Opens a part by arithmetic.
#[inline(always)]
pub(super) fn open(part: &[u8], out: &mut Opened) {
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

/// The same in vectors.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn open_512(part: &[u8], out: &mut Opened) {
    use std::arch::x86_64::*;
    let (scales, codes) = part.split_at(LANES * 4);
    let (unit, sizes) = (_mm512_set1_ps(UNIT), _mm256_set1_epi16(i16::from(NAN)));
    // SAFETY: 16 floats, 16 codes of each line, and places of the result.
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
