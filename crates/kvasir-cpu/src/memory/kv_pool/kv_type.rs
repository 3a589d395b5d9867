//! KV cache data types: encoding and decoding of K and V rows (f32, f16, bf16, fp8, and
//! block-quantized 8 and 4 bits).
//!
//! `fp8` is e4m3 without a scale: 3 significant bits behind the leading one, magnitudes from 2^-9 to
//! 448, to which larger ones are clamped.
//!
//! A quantized row is a sequence of blocks along the head dimension:
//!
//! - `q8_0`, `q4_0`: 32 numbers, an f16 scale `d`, then codes; `x = d * q` or `x = d * (q - 8)`.
//! - `q8a`, `q4a`: 64 numbers, an f16 scale and an f16 bias, then codes; `x = scale * q + bias`.
//!
//! Of 4-bit codes the first half of a block is in the low nibbles. The functions are autovectorized
//! per instruction set and give the same bytes on each, which the tests below check.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::float16::{bf16, half, round_bf16};
use half::f16;
use kvasir_program::LayerFacts;
use std::fmt;

/// KV cache data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// IEEE half precision: 5 exponent bits.
    F16,
    /// bfloat16: 8 exponent bits.
    Bf16,
    /// 8-bit floats (e4m3), clamped to 448: 4 exponent bits and no scale.
    Fp8,
    /// 8-bit codes, 32 per block with an f16 scale (8.5 bits per number).
    Q8_0,
    /// 4-bit codes, 32 per block with an f16 scale (4.5 bits per number).
    Q4_0,
    /// Asymmetric 8-bit codes, 64 per block with an f16 scale and an f16 bias (8.5 bits per
    /// number).
    Q8a,
    /// Asymmetric 4-bit codes, 64 per block with an f16 scale and an f16 bias (4.5 bits per
    /// number).
    Q4a,
}

impl KvType {
    /// Every type that this backend stores.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Bf16, Self::Fp8, Self::Q8_0, Self::Q4_0, Self::Q8a, Self::Q4a];

    /// The type with this name, as `Display` writes it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.to_string() == name)
    }

    /// Whether its numbers have more significant bits than bf16: attention then computes in f32.
    pub fn needs_f32_attention(self) -> bool {
        matches!(self, Self::F32 | Self::F16)
    }

    /// Bytes that one token takes in all layers: K, V and indexer keys.
    pub fn slot_bytes(self, layers: &[LayerFacts]) -> usize {
        let layer = |l: &LayerFacts| {
            let values = if l.value_in_key { 0 } else { self.bytes(l.value_dim) };
            l.kv_heads * (self.bytes(l.key_dim) + values) + self.bytes(l.index_dim)
        };
        layers.iter().map(layer).sum()
    }

    /// Bytes of `width` numbers; a partial last block takes a whole one.
    pub(crate) fn bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => width * 4,
            Self::F16 | Self::Bf16 => width * 2,
            Self::Fp8 => width,
            Self::Q8_0 => width.div_ceil(32) * 34,
            Self::Q4_0 => width.div_ceil(32) * 18,
            Self::Q8a => width.div_ceil(64) * 68,
            Self::Q4a => width.div_ceil(64) * 36,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q8a => "q8a",
            Self::Q4a => "q4a",
        })
    }
}

#[inline(always)]
fn encode_body(kind: KvType, x: &[f32], out: &mut [u8]) {
    match kind {
        KvType::F32 => pairs::<4>(out, x, f32::to_le_bytes),
        KvType::F16 => pairs::<2>(out, x, |v| f16::from_f32(v).to_le_bytes()),
        KvType::Bf16 => pairs::<2>(out, x, |v| round_bf16(v).to_le_bytes()),
        KvType::Fp8 => pairs::<1>(out, x, |v| [to_e4m3(v)]),
        KvType::Q8_0 => groups::<34, 32>(out, x, |group, x| {
            let d = x.iter().fold(0f32, |a, v| a.max(v.abs())) / 127.0;
            let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
            group[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            let codes = group[2..].iter_mut().zip(x);
            codes.for_each(|(b, v)| *b = (v * inverse).round_ties_even() as i8 as u8);
        }),
        KvType::Q4_0 => groups::<18, 32>(out, x, |group, x| {
            // The number of the largest magnitude gets code -8, the end of the range that reaches
            // farthest.
            let far = x.iter().fold(0f32, |a, v| if v.abs() > a.abs() { *v } else { a });
            let d = far / -8.0;
            let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
            group[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            let code = |v: f32| (v * inverse + 8.5).clamp(0.0, 15.0) as u8;
            let (low, high) = x.split_at(16);
            for ((b, l), h) in group[2..].iter_mut().zip(low).zip(high) {
                *b = code(*l) | code(*h) << 4;
            }
        }),
        KvType::Q8a => groups::<68, 64>(out, x, |group, x| {
            let code = affine(group, x, 255.0);
            group[4..].iter_mut().zip(x).for_each(|(b, v)| *b = code(*v));
        }),
        KvType::Q4a => groups::<36, 64>(out, x, |group, x| {
            let code = affine(group, x, 15.0);
            let (low, high) = x.split_at(32);
            for ((b, l), h) in group[4..].iter_mut().zip(low).zip(high) {
                *b = code(*l) | code(*h) << 4;
            }
        }),
    }
}

/// Bits of an f32 mantissa that e4m3 does not have.
const E4M3_SHIFT: u32 = 20;
/// Difference of the exponent biases, 127 - 7, in the exponent field of an f32.
const E4M3_BIAS: u32 = 120 << 23;

/// Rounds to the nearest e4m3, ties to even; clamps to the largest.
#[inline(always)]
fn to_e4m3(x: f32) -> u8 {
    let bits = x.abs().min(448.0).to_bits();
    let half = (1 << (E4M3_SHIFT - 1)) - 1 + (bits >> E4M3_SHIFT & 1);
    let normal = bits.wrapping_sub(E4M3_BIAS).wrapping_add(half) >> E4M3_SHIFT;
    // Below 2^-6 codes are multiples of 2^-9.
    let subnormal = (x.abs() * 512.0).round_ties_even() as u32;
    let code = if x.abs() < 1.0 / 64.0 { subnormal } else { normal };
    code as u8 | (x.to_bits() >> 24) as u8 & 0x80
}

#[inline(always)]
fn from_e4m3(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let normal = f32::from_bits((magnitude << E4M3_SHIFT) + E4M3_BIAS);
    let magnitude = if magnitude < 8 { magnitude as f32 / 512.0 } else { normal };
    f32::from_bits(magnitude.to_bits() | u32::from(code & 0x80) << 24)
}

/// Encodes each number as `N` bytes.
#[inline(always)]
fn pairs<const N: usize>(out: &mut [u8], x: &[f32], f: impl Fn(f32) -> [u8; N]) {
    out.as_chunks_mut::<N>().0.iter_mut().zip(x).for_each(|(b, v)| *b = f(*v));
}

/// Encodes each block of `N` numbers as `B` bytes; a partial last block is padded with its last
/// number.
#[inline(always)]
fn groups<const B: usize, const N: usize>(out: &mut [u8], x: &[f32], f: impl Fn(&mut [u8; B], &[f32; N])) {
    for (group, x) in out.as_chunks_mut::<B>().0.iter_mut().zip(x.chunks(N)) {
        let mut all = [x.last().copied().unwrap_or_default(); N];
        all[..x.len()].copy_from_slice(x);
        f(group, &all);
    }
}

/// Writes scale and bias of an asymmetric block, and returns the quantizer of its numbers, which
/// uses both as stored (rounded to f16).
#[inline(always)]
fn affine<const B: usize>(group: &mut [u8; B], x: &[f32; 64], max_code: f32) -> impl Fn(f32) -> u8 + use<B> {
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    let (scale, bias) = (f16::from_f32((high - low) / max_code), f16::from_f32(low));
    group[..2].copy_from_slice(&scale.to_le_bytes());
    group[2..4].copy_from_slice(&bias.to_le_bytes());
    let (scale, bias) = (scale.to_f32(), bias.to_f32());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    move |v| ((v - bias) * inverse).round_ties_even().clamp(0.0, max_code) as u8
}

per_isa! {
    /// Quantizes or rounds a row into its stored form.
    encode(kind: KvType, x: &[f32], out: &mut [u8]) => encode_body
}

#[inline(always)]
fn decode_body(kind: KvType, bytes: &[u8], out: &mut [f32]) {
    match kind {
        KvType::F32 => {
            let values = out.iter_mut().zip(bytes.as_chunks::<4>().0);
            values.for_each(|(v, b)| *v = f32::from_le_bytes(*b));
        }
        KvType::F16 => {
            let values = out.iter_mut().zip(bytes.as_chunks::<2>().0);
            values.for_each(|(v, b)| *v = half(u16::from_le_bytes(*b)));
        }
        KvType::Bf16 => {
            let values = out.iter_mut().zip(bytes.as_chunks::<2>().0);
            values.for_each(|(v, b)| *v = bf16(u16::from_le_bytes(*b)));
        }
        KvType::Fp8 => out.iter_mut().zip(bytes).for_each(|(v, b)| *v = from_e4m3(*b)),
        KvType::Q8_0 => {
            for (out, group) in out.chunks_mut(32).zip(bytes.as_chunks::<34>().0) {
                let d = half_at(group, 0);
                out.iter_mut().zip(&group[2..]).for_each(|(v, b)| *v = f32::from(*b as i8) * d);
            }
        }
        KvType::Q4_0 => {
            for (out, group) in out.chunks_mut(32).zip(bytes.as_chunks::<18>().0) {
                let d = half_at(group, 0);
                nibbles(out, &group[2..], |code| (f32::from(code) - 8.0) * d);
            }
        }
        KvType::Q8a => {
            for (out, group) in out.chunks_mut(64).zip(bytes.as_chunks::<68>().0) {
                let (scale, bias) = (half_at(group, 0), half_at(group, 2));
                out.iter_mut().zip(&group[4..]).for_each(|(v, b)| *v = f32::from(*b).mul_add(scale, bias));
            }
        }
        KvType::Q4a => {
            for (out, group) in out.chunks_mut(64).zip(bytes.as_chunks::<36>().0) {
                let (scale, bias) = (half_at(group, 0), half_at(group, 2));
                nibbles(out, &group[4..], |code| f32::from(code).mul_add(scale, bias));
            }
        }
    }
}

/// Unpacks nibbles: the low nibbles of all bytes first, then the high ones.
#[inline(always)]
fn nibbles(out: &mut [f32], bytes: &[u8], f: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(out.len().min(bytes.len()));
    low.iter_mut().zip(bytes).for_each(|(v, b)| *v = f(b & 15));
    high.iter_mut().zip(bytes).for_each(|(v, b)| *v = f(b >> 4));
}

#[inline(always)]
fn half_at(group: &[u8], at: usize) -> f32 {
    half(u16::from_le_bytes([group[at], group[at + 1]]))
}

#[inline(always)]
fn decode_bf16_body(kind: KvType, bytes: &[u8], scratch: &mut [f32], out: &mut [u16]) {
    decode_body(kind, bytes, scratch);
    out.iter_mut().zip(scratch).for_each(|(o, v)| *o = round_bf16(*v));
}

per_isa! {
    decode_by_compiler(kind: KvType, bytes: &[u8], out: &mut [f32]) => decode_body
}

/// Dequantizes the first `out.len()` numbers of a stored row.
pub(crate) fn decode(isa: Isa, kind: KvType, bytes: &[u8], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if kind == KvType::F16 && isa.has_avx2() {
        // SAFETY: the set implies F16C.
        return unsafe { decode_f16(bytes, out) };
    }
    decode_by_compiler(isa, kind, bytes, out);
}

/// Widens f16 with F16C, which the compiler does not use by itself.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
    let (out, rest) = out.as_chunks_mut::<8>();
    let (eights, last) = bytes.split_at(out.len() * 16);
    for (out, bytes) in out.iter_mut().zip(eights.as_chunks::<16>().0) {
        // SAFETY: eight numbers each.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())))
        };
    }
    decode_body(KvType::F16, last, rest);
}
per_isa! {
    /// Dequantizes and rounds to bf16; `scratch` has the same length.
    decode_bf16(kind: KvType, bytes: &[u8], scratch: &mut [f32], out: &mut [u16]) => decode_bf16_body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;

    #[test]
    fn kv_types_round_trip_alike_on_every_instruction_set() {
        for width in [128, 64, 48, 80] {
            let x: Vec<f32> = (0..width).map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0) * 3.0).collect();
            for kind in KvType::ALL {
                // Half a quantization step, or half an ulp of the mantissa, plus the rounding of
                // the scales.
                let allowed = match kind {
                    KvType::F32 => 0.0,
                    KvType::F16 => 3.0 / 2048.0,
                    KvType::Bf16 => 3.0 / 256.0,
                    KvType::Fp8 => 3.0 / 16.0,
                    KvType::Q8_0 => 3.0 / 254.0 + 3.0 / 1024.0,
                    KvType::Q4_0 => 3.0 / 8.0 + 3.0 / 512.0,
                    KvType::Q8a => 6.0 / 510.0 + 6.0 / 1024.0,
                    KvType::Q4a => 6.0 / 30.0 + 6.0 / 1024.0,
                };
                let mut reference = None;
                for isa in isas() {
                    let mut bytes = vec![0; kind.bytes(width)];
                    encode(isa, kind, &x, &mut bytes);
                    let mut back = vec![0.0; width];
                    decode(isa, kind, &bytes, &mut back);
                    let worst = x.iter().zip(&back).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
                    assert!(worst <= allowed, "{kind} {width}: {worst} > {allowed}");
                    let reference = reference.get_or_insert((bytes.clone(), back.clone()));
                    assert_eq!(*reference, (bytes, back), "{kind} on {isa}");
                }
            }
        }
    }

    #[test]
    fn fp8_is_the_nearest_e4m3() {
        let codes = || (0..=0xfeu8).filter(|code| code & 0x7f != 0x7f);
        for code in codes() {
            let value = kvasir_formats::encoding::f8_e4m3(code);
            assert_eq!((from_e4m3(code), to_e4m3(value)), (value, code));
        }
        for i in 0..4000 {
            let x = (i as f32 / 4000.0 - 0.5) * 2f32.powi(i % 21 - 10);
            let error = |code: u8| (from_e4m3(code) - x).abs();
            let best = codes().map(error).fold(f32::MAX, f32::min);
            assert_eq!(error(to_e4m3(x)), best, "{x}");
        }
        assert_eq!([1e6, -1e6, f32::INFINITY].map(|x| from_e4m3(to_e4m3(x))), [448.0, -448.0, 448.0]);
    }

    #[test]
    fn constant_and_zero_rows_survive() {
        for kind in KvType::ALL {
            for v in [0.0, -2.0, 0.25] {
                let (x, mut bytes) = ([v; 64], vec![1; kind.bytes(64)]);
                encode(Isa::PORTABLE, kind, &x, &mut bytes);
                let mut back = [9.0; 64];
                decode(Isa::PORTABLE, kind, &bytes, &mut back);
                assert!(back.iter().all(|b| (b - v).abs() <= v.abs() / 250.0), "{kind} {v}: {back:?}");
            }
        }
    }
}
