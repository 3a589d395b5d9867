//! Packs Q8_0 superblocks with AVX-512: requantizes block scales and unpacks to int8 without a
//! detour through memory.
//!
//! Writes the bytes that `source` and `transpose` would; the test compares them for all kinds of
//! scales.

use crate::isa::float16::ROUND;
use crate::isa::tile::LANES;
use crate::isa::vectors::v512::{bytes, transpose_square, words_of};
use crate::weights::int8::decode::MAX_SCALE_16BIT;
use crate::weights::int8::format::Format;
use crate::weights::panels::EncodedPanel;
use kvasir_formats::DType;
use std::arch::x86_64::*;

/// Bytes of a Q8_0 block, and of the eight blocks of a superblock.
const BLOCK: usize = 34;
const WHOLE: usize = 8 * BLOCK;

/// Packs the superblock of `rows` into `out`. Returns false if a row is absent or incomplete; `out`
/// is unchanged then.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn pack(rows: &EncodedPanel<'_>, out: &mut [u8]) -> bool {
    let Some(format) = Format::of(DType::Q8_0).filter(|format| out.len() == format.bytes()) else {
        return false;
    };
    let mut at = [std::ptr::null::<u8>(); LANES];
    for (at, row) in at.iter_mut().zip(rows) {
        if row.len() < WHOLE {
            return false;
        }
        *at = row.as_ptr();
    }
    let (floats, codes) = out.split_at_mut(format.codes_at());
    // SAFETY: eight blocks of each row.
    let blocks = unsafe { block_scales(&at) };
    let (units, whole) = whole_scales(&blocks);
    if let Some(to) = floats.first_chunk_mut::<32>() {
        // SAFETY: 32 bytes.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), units) };
    }
    for (pair, lines) in codes.as_chunks_mut::<64>().0.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let mut codes = [_mm512_setzero_si512(); LANES];
        for (codes, at) in codes.iter_mut().zip(&at) {
            // SAFETY: two blocks of the row.
            let (one, two) = unsafe {
                let at = at.add(pair * 2 * BLOCK + 2);
                (_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(BLOCK).cast()))
            };
            *codes = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(one), two);
        }
        for (i, (line, column)) in lines.iter_mut().zip(transpose_square(codes)).enumerate() {
            let v = unpacked(column, whole[pair * 2 + i / 8]);
            // SAFETY: 64 bytes.
            unsafe { _mm512_storeu_si512(line.as_mut_ptr().cast(), v) };
        }
    }
    true
}

/// Gathers the f16 scales of eight blocks of all rows as f32.
///
/// # Safety
/// Eight blocks must be readable at each pointer.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn block_scales(at: &[*const u8; LANES]) -> [__m512; 8] {
    let mut out = [_mm512_setzero_ps(); 8];
    // SAFETY: 16 pointers; four bytes of each block.
    unsafe {
        let (low, high) =
            (_mm512_loadu_si512(at.as_ptr().cast()), _mm512_loadu_si512(at.as_ptr().add(8).cast()));
        for (b, out) in out.iter_mut().enumerate() {
            let offset = _mm512_set1_epi64((b * BLOCK) as i64);
            let low = _mm512_i64gather_epi32::<1>(_mm512_add_epi64(low, offset), std::ptr::null());
            let high = _mm512_i64gather_epi32::<1>(_mm512_add_epi64(high, offset), std::ptr::null());
            let bits = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            *out = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
        }
    }
    out
}

/// `((code * scale) >> 15, rounded) + 128`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn unpacked(codes: __m512i, scale: __m512i) -> __m512i {
    let [even, odd] = words_of(codes);
    let v = bytes([_mm512_mulhrs_epi16(even, scale), _mm512_mulhrs_epi16(odd, scale)]);
    _mm512_xor_si512(v, _mm512_set1_epi8(-128))
}

/// The bf16 unit of each row, and the block scales as integer multiples of it, each in two 16-bit
/// lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn whole_scales(blocks: &[__m512; 8]) -> (__m256i, [__m512i; 8]) {
    let max = _mm512_set1_ps(MAX_SCALE_16BIT);
    let mut largest = _mm512_setzero_ps();
    for scale in blocks {
        // `vmaxps` returns the second operand if one is NaN.
        largest = _mm512_max_ps(_mm512_abs_ps(*scale), largest);
    }
    // The smallest bf16 not below it, if normal.
    let exact = _mm512_castps_si512(_mm512_div_ps(largest, max));
    let up = _mm512_srli_epi32::<16>(_mm512_add_epi32(exact, _mm512_set1_epi32(0xffff)));
    let normal = _mm512_cmpge_epu32_mask(up, _mm512_set1_epi32(0x80))
        & _mm512_cmplt_epu32_mask(up, _mm512_set1_epi32(0x7f80));
    let unit = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(up));
    let inverse = _mm512_maskz_div_ps(normal, _mm512_set1_ps(1.0), unit);
    let mut out = [_mm512_setzero_si512(); 8];
    for (out, scale) in out.iter_mut().zip(blocks) {
        let v = _mm512_max_ps(_mm512_mul_ps(*scale, inverse), _mm512_sub_ps(_mm512_setzero_ps(), max));
        let v = _mm512_add_ps(_mm512_min_ps(v, max), _mm512_set1_ps(ROUND));
        let v = _mm512_castps_si512(v);
        *out = _mm512_mask_blend_epi16(0xaaaa_aaaa, v, _mm512_slli_epi32::<16>(v));
    }
    (_mm512_maskz_cvtepi32_epi16(normal, up), out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::Isa;
    use crate::isa::features::tests::isas;
    use crate::weights::int8::pack::pack as pack_panel;
    use kvasir_testkit::Random;

    #[test]
    fn vectors_pack_what_the_plain_loops_do() {
        let mut generator = Random::new(3);
        let mut random = || generator.bits() as u16;
        let format = Format::of(DType::Q8_0).unwrap();
        for case in 0..200 {
            let mut rows: Vec<Vec<u8>> =
                (0..LANES).map(|_| (0..2 * WHOLE + BLOCK).map(|_| random() as u8).collect()).collect();
            for block in rows.iter_mut().flat_map(|row| row.chunks_exact_mut(BLOCK)) {
                // All kinds of scales: zero, subnormal, infinite or NaN, large, negative.
                let bits = match random() % 12 {
                    0 => 0,
                    1 => random() & 0x3ff,
                    2 => 0x7c00 | random() & 0x3ff,
                    3 => 0x7800 | random() & 0x3ff,
                    4 => random() | 0x8000,
                    _ => 0x1800 + (random() & 0x7ff),
                };
                block[..2].copy_from_slice(&bits.to_le_bytes());
            }
            if case % 5 == 0 {
                rows.truncate(7);
            }
            let mut encoded: EncodedPanel<'_> = [&[]; LANES];
            encoded.iter_mut().zip(&rows).for_each(|(to, row)| *to = row);
            let packed = |isa| {
                let mut out = vec![0; 3 * format.bytes()];
                pack_panel(isa, DType::Q8_0, format, &encoded, isa, &mut out);
                out
            };
            let expected = packed(Isa::PORTABLE);
            for isa in isas() {
                assert!(packed(isa) == expected, "{isa} case {case}");
            }
        }
    }
}
