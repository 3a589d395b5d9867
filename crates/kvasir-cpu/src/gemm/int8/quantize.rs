//! Quantizes one superblock of activations to int8: `scale = max |x| / 127`, codes rounded to
//! nearest even.
//!
//! Also writes the negated code sums that kernels need. The AVX-512 version has the bits of the
//! plain loop; the test compares them on ties, extremes and NaNs.

use crate::isa::dispatch::per_isa;
use crate::isa::float16::ROUND;
use crate::weights::int8::format::{Format, SUPERBLOCK};

/// A row's superblock as 16-bit integers, for GEMV with 6-bit weights: of each four codes the first
/// and third, then the second and fourth.
pub(crate) type Words = [[[i16; 2]; SUPERBLOCK / 4]; 2];

/// Largest row count of the GEMV kernels.
pub(crate) const FEW: usize = 4;

/// Negated sums of the codes of one row and superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Sums {
    /// Per 16 inputs.
    pub(crate) of_16: [i16; SUPERBLOCK / 16],
    /// Per 32 inputs.
    pub(crate) of_32: [i16; SUPERBLOCK / 32],
    /// 128 times the sum over all inputs: the correction for weights that are
    /// [offset](Format::zero_point) by 128.
    pub(crate) zero_point: i32,
}

impl Sums {
    /// The sums per sub-block of the format.
    #[inline(always)]
    pub(crate) fn of_subs(&self, f: Format) -> &[i16] {
        if f.sub == 32 { &self.of_32 } else { &self.of_16 }
    }

    /// The sums of sub-blocks `2 two` and `2 two + 1` in one word, the first in the low half.
    #[inline(always)]
    pub(crate) fn pair(&self, f: Format, two: usize) -> i32 {
        let sums = self.of_subs(f);
        i32::from(sums[2 * two] as u16) | i32::from(sums[2 * two + 1]) << 16
    }
}

/// Destinations of one row's quantized superblock.
pub(crate) struct Destinations {
    /// Four lines of 64 codes, a tile (1024 bytes) apart.
    pub(crate) codes: *mut i8,
    pub(crate) scale: *mut f32,
    pub(crate) sums: *mut Sums,
    /// 32 bf16: the two exact parts of the sums of 16 inputs.
    pub(crate) parts: *mut u16,
    /// The 16-bit codes for GEMV, if the row is one of the first.
    pub(crate) words: Option<*mut Words>,
}

/// The scale for a maximum absolute value, and its inverse; both 0 if the scale would not be
/// normal.
#[inline(always)]
fn scales(largest: f32) -> (f32, f32) {
    let scale = largest / 127.0;
    if scale.is_normal() { (scale, 1.0 / scale) } else { (0.0, 0.0) }
}

/// # Safety
/// As for [`quantize`].
#[inline(always)]
unsafe fn body(x: &[f32; SUPERBLOCK], to: &Destinations) {
    // 16 lanes at a time, so that the loop vectorizes.
    let mut max = [0f32; 16];
    for x in x.as_chunks::<16>().0 {
        max.iter_mut().zip(x).for_each(|(max, v)| *max = if v.abs() > *max { v.abs() } else { *max });
    }
    let (scale, inverse) = scales(max.into_iter().fold(0f32, f32::max));
    let codes: [i8; SUPERBLOCK] = std::array::from_fn(|i| (x[i] * inverse + ROUND).to_bits() as u8 as i8);
    let mut sums = Sums::default();
    let mut parts = [0u16; 32];
    for (i, sub) in codes.as_chunks::<16>().0.iter().enumerate() {
        let sum = -sub.iter().map(|&c| i16::from(c)).sum::<i16>();
        sums.of_16[i] = sum;
        sums.of_32[i / 2] += sum;
        sums.zero_point += 128 * i32::from(sum);
        // Both parts have at most eight significant bits, so they are exact in bf16.
        parts[i] = f32::from(sum & !15).to_bits().wrapping_shr(16) as u16;
        parts[16 + i] = f32::from(sum & 15).to_bits().wrapping_shr(16) as u16;
    }
    // SAFETY: the caller's destinations.
    unsafe {
        for (step, line) in codes.as_chunks::<64>().0.iter().enumerate() {
            to.codes.add(step * 1024).cast::<[i8; 64]>().write_unaligned(*line);
        }
        to.scale.write(scale);
        to.sums.write(sums);
        to.parts.cast::<[u16; 32]>().write_unaligned(parts);
        if let Some(words) = to.words {
            let pair = |of: &[i8; 4], odd| [of[odd], of[odd + 2]].map(i16::from);
            let of = |odd| std::array::from_fn(|at| pair(&codes.as_chunks().0[at], odd));
            words.write([of(0), of(1)]);
        }
    }
}

per_isa! {
    /// Writes codes in `-127..=127`, their scale and their sums. Ties round to even; NaNs do not
    /// affect the scale.
    ///
    /// # Safety
    /// All destinations must be valid for writes and exclusive to this call. Codes and parts may be
    /// unaligned.
    unsafe quantize(x: &[f32; SUPERBLOCK], to: &Destinations) => body, avx512: wide::quantize
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use crate::gemm::int8::quantize::{Destinations, scales};
    use crate::isa::float16::ROUND;
    use crate::weights::int8::format::SUPERBLOCK;
    use std::arch::x86_64::*;

    /// # Safety
    /// As for [`super::quantize`], and the CPU must support the target features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) unsafe fn quantize(x: &[f32; SUPERBLOCK], to: &Destinations) {
        let mut largest = [_mm512_setzero_ps(); 4];
        let x = x.as_chunks::<16>().0;
        for (i, x) in x.iter().enumerate() {
            // SAFETY: 16 floats. `vmaxps` returns the second operand if one is NaN, so NaNs are
            // skipped.
            let v = unsafe { _mm512_loadu_ps(x.as_ptr()) };
            largest[i % 4] = _mm512_max_ps(_mm512_abs_ps(v), largest[i % 4]);
        }
        let [a, b, c, d] = largest;
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
        let (scale, inverse) = scales(largest);
        let (inverse, round) = (_mm512_set1_ps(inverse), _mm512_set1_ps(ROUND));
        let mut lines = [_mm512_setzero_si512(); 4];
        for (line, x) in lines.iter_mut().zip(x.as_chunks::<4>().0) {
            let part = |i: usize| {
                // SAFETY: 16 floats.
                let v = unsafe { _mm512_loadu_ps(x[i].as_ptr()) };
                let v = _mm512_add_ps(_mm512_mul_ps(v, inverse), round);
                _mm512_cvtepi32_epi8(_mm512_castps_si512(v))
            };
            let low = _mm256_set_m128i(part(1), part(0));
            let high = _mm256_set_m128i(part(3), part(2));
            *line = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        }
        let sums = negated_sums(&lines);
        let pairs = _mm512_cvtepi64_epi32(_mm512_add_epi32(sums, _mm512_srli_epi64::<32>(sums)));
        let bits = |v: __m512i| {
            let v = _mm512_castps_si512(_mm512_cvtepi32_ps(v));
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(v))
        };
        let low = _mm512_set1_epi32(15);
        // SAFETY: the caller's destinations.
        unsafe {
            for (step, line) in lines.iter().enumerate() {
                _mm512_storeu_si512(to.codes.add(step * 1024).cast(), *line);
            }
            to.scale.write(scale);
            _mm256_storeu_si256((&raw mut (*to.sums).of_16).cast(), _mm512_cvtepi32_epi16(sums));
            _mm_storeu_si128((&raw mut (*to.sums).of_32).cast(), _mm256_cvtepi32_epi16(pairs));
            (*to.sums).zero_point = 128 * _mm512_reduce_add_epi32(sums);
            _mm256_storeu_si256(to.parts.cast(), bits(_mm512_andnot_si512(low, sums)));
            _mm256_storeu_si256(to.parts.add(16).cast(), bits(_mm512_and_si512(low, sums)));
            if let Some(words) = to.words {
                for (step, line) in lines.into_iter().enumerate() {
                    let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(line));
                    _mm512_storeu_si512((&raw mut (*words)[0]).cast::<__m512i>().add(step).cast(), even);
                    let odd = _mm512_srai_epi16::<8>(line);
                    _mm512_storeu_si512((&raw mut (*words)[1]).cast::<__m512i>().add(step).cast(), odd);
                }
            }
        }
    }

    /// Negated sums of 16 runs of 16 signed bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn negated_sums(lines: &[__m512i; 4]) -> __m512i {
        let zero = _mm512_setzero_si512();
        // Bytes are offset to unsigned; `vpsadbw` leaves sums of eight in 64-bit lanes.
        let eights = lines.map(|l| _mm512_sad_epu8(_mm512_xor_si512(l, _mm512_set1_epi8(-128)), zero));
        let two = |a, b| _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        let (first, second) = (two(eights[0], eights[1]), two(eights[2], eights[3]));
        // 128-bit lane `i` holds run `i` of lines 0, 2, 1 and 3.
        let mixed = _mm512_or_si512(first, _mm512_slli_epi64::<32>(second));
        let order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
        _mm512_sub_epi32(_mm512_set1_epi32(16 * 128), _mm512_permutexvar_epi32(order, mixed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::Isa;
    use crate::isa::features::tests::isas;
    use kvasir_testkit::Random;

    #[derive(Debug, PartialEq)]
    struct Made {
        codes: Vec<i8>,
        scale: u32,
        sums: Sums,
        parts: [u16; 32],
        words: Words,
    }

    fn make(x: &[f32; SUPERBLOCK], isa: Isa) -> Made {
        let (mut codes, mut scale) = (vec![0i8; 4096], f32::NAN);
        let (mut sums, mut parts, mut words) = (Sums::default(), [0; 32], [[[0; 2]; 64]; 2]);
        let to = Destinations {
            codes: codes.as_mut_ptr(),
            scale: &mut scale,
            sums: &mut sums,
            parts: parts.as_mut_ptr(),
            words: Some(&mut words),
        };
        // SAFETY: all destinations are local to this function.
        unsafe { quantize(isa, x, &to) };
        Made { codes, scale: scale.to_bits(), sums, parts, words }
    }

    #[test]
    fn vectors_quantize_as_the_plain_function_does() {
        let mut random = Random::new(1);
        let mut rows: Vec<[f32; SUPERBLOCK]> =
            (0..200).map(|_| std::array::from_fn(|_| random.unit())).collect();
        // Ties, all zeros, a single value, extremes, NaNs.
        rows.push(std::array::from_fn(|i| if i == 0 { 127.0 } else { i as f32 / 2.0 - 63.5 }));
        rows.push([0.0; SUPERBLOCK]);
        rows.push(std::array::from_fn(|i| if i == 77 { -3.0 } else { 0.0 }));
        rows.push([127.0; SUPERBLOCK]);
        rows.push([-127.0; SUPERBLOCK]);
        rows.push([1e-42; SUPERBLOCK]);
        rows.push([f32::MAX; SUPERBLOCK]);
        rows.push(std::array::from_fn(|i| if i % 3 == 0 { f32::NAN } else { 1.0 }));
        for x in &rows {
            let reference = make(x, Isa::PORTABLE);
            for isa in isas() {
                assert_eq!(make(x, isa), reference, "{isa}");
            }
        }
        let made = make(&std::array::from_fn(|i| i as f32 - 128.0), Isa::PORTABLE);
        let code = |i: usize| i16::from(made.codes[i / 64 * 1024 + i % 64]);
        assert_eq!((made.words[0][9], made.words[1][63]), ([code(36), code(38)], [code(253), code(255)]));
        let sums = make(&[127.0; SUPERBLOCK], Isa::PORTABLE).sums;
        assert_eq!((sums.of_16[3], sums.of_32[3], sums.zero_point), (-127 * 16, -127 * 32, -127 * 256 * 128));
    }
}
