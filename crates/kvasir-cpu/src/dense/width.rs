//! How the numbers of a matrix that is computed in f32 are kept: as narrow as they came, which loses nothing.

use super::LANES;
use crate::Level;
use crate::halves::{bf16, half, high_half};
use crate::level::per_level;
use kvasir_formats::DType;
use kvasir_formats::encoding::{E2M1_DOUBLED, e8m0_half};

/// Inputs that are opened together, and share a scale where there are some.
pub(crate) const PART: usize = 32;

/// What a number takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// f32.
    Whole,
    /// The upper half of an f32.
    Bf16,
    /// f16.
    Half,
    /// Floats of four bits, a power of two for each 32 inputs of an output.
    Nibble,
}

/// Some inputs' numbers of a panel's outputs.
pub(crate) type Opened = [[f32; LANES]; PART];

impl Width {
    /// That of numbers that came in this encoding.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::BF16 => Self::Bf16,
            DType::F16 => Self::Half,
            DType::Mxfp4 => Self::Nibble,
            _ => Self::Whole,
        }
    }

    /// Bytes of [`PART`] inputs of a panel.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Whole => PART * LANES * 4,
            Self::Bf16 | Self::Half => PART * LANES * 2,
            Self::Nibble => LANES + PART * LANES / 2,
        }
    }

    /// Writes one output's numbers into its panel's part.
    #[inline(always)]
    fn put(self, lane: usize, values: &[f32; PART], part: &mut [u8]) {
        match self {
            Self::Whole => {
                for (bytes, v) in part.as_chunks_mut::<{ LANES * 4 }>().0.iter_mut().zip(values) {
                    bytes[lane * 4..lane * 4 + 4].copy_from_slice(&v.to_le_bytes());
                }
            }
            Self::Bf16 | Self::Half => {
                for (bytes, v) in part.as_chunks_mut::<{ LANES * 2 }>().0.iter_mut().zip(values) {
                    let bits = match self {
                        Self::Bf16 => high_half(*v),
                        _ => half::f16::from_f32(*v).to_bits(),
                    };
                    bytes[lane * 2..lane * 2 + 2].copy_from_slice(&bits.to_le_bytes());
                }
            }
            Self::Nibble => {
                let (scales, codes) = part.split_at_mut(LANES);
                let power = common_power(values);
                scales[lane] = power;
                let mut nibbles = [0u32; PART];
                for (nibble, v) in nibbles.iter_mut().zip(values) {
                    *nibble = code(*v, power);
                }
                let lines = codes.as_chunks_mut::<64>().0.iter_mut().zip(nibbles.as_chunks::<8>().0);
                for (line, nibbles) in lines {
                    let mut word = 0;
                    for (i, nibble) in nibbles.iter().enumerate() {
                        word |= nibble << (i * 4);
                    }
                    line[lane * 4..lane * 4 + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }

    /// Opens a part.
    #[inline(always)]
    pub(crate) fn open(self, level: Level, part: &[u8], out: &mut Opened) {
        match self {
            Self::Whole => {
                for (out, bytes) in out.iter_mut().zip(part.as_chunks::<{ LANES * 4 }>().0) {
                    for (v, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *v = f32::from_le_bytes(*bytes);
                    }
                }
            }
            Self::Bf16 => {
                for (out, bytes) in out.iter_mut().zip(part.as_chunks::<{ LANES * 2 }>().0) {
                    for (v, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *v = bf16(u16::from_le_bytes(*bytes));
                    }
                }
            }
            Self::Half => {
                for (out, bytes) in out.iter_mut().zip(part.as_chunks::<{ LANES * 2 }>().0) {
                    for (v, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *v = half(u16::from_le_bytes(*bytes));
                    }
                }
            }
            Self::Nibble => {
                #[cfg(target_arch = "x86_64")]
                if level >= Level::Avx512Vnni {
                    // SAFETY: the level says so.
                    return unsafe { nibbles_512(part, out) };
                }
                let _ = level;
                nibbles(part, out);
            }
        }
    }
}

#[inline(always)]
fn put_row_body(width: Width, lane: usize, values: &[f32], panel: &mut [u8]) {
    let (parts, rest) = values.as_chunks::<PART>();
    let mut places = panel.chunks_exact_mut(width.bytes());
    for (values, part) in parts.iter().zip(&mut places) {
        width.put(lane, values, part);
    }
    if let Some(part) = places.next() {
        let mut last = [0.0; PART];
        last[..rest.len()].copy_from_slice(rest);
        width.put(lane, &last, part);
    }
}

per_level! {
    /// Writes one output's numbers into its panel.
    put_row(width: Width, lane: usize, values: &[f32], panel: &mut [u8]) => put_row_body
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

/// Codes opened by arithmetic: of a code's three lower bits two are an exponent.
#[inline(always)]
fn nibbles(part: &[u8], out: &mut Opened) {
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

#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn nibbles_512(part: &[u8], out: &mut Opened) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_formats::encoding;

    #[test]
    fn what_was_put_is_what_is_opened() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::Mxfp4] {
            let width = Width::of(dtype);
            for seed in 0..256u32 {
                let mut bytes: Vec<u8> = (0..PART / dtype.block_len() * dtype.block_bytes() * LANES)
                    .map(|i| ((i as u32 + 1).wrapping_mul(0x9e37_79b9 ^ seed << 7) >> 21) as u8)
                    .collect();
                if dtype == DType::Mxfp4 {
                    bytes.chunks_exact_mut(17).enumerate().for_each(|(n, b)| b[0] = seed as u8 ^ n as u8);
                }
                let mut values = [0f32; PART * LANES];
                encoding::dequantize(dtype, &bytes, &mut values).unwrap();
                let mut part = vec![0; width.bytes()];
                for (lane, values) in values.chunks_exact(PART).enumerate() {
                    put_row(Level::detect(), width, lane, values, &mut part);
                }
                for level in Level::available() {
                    let mut out = [[f32::NAN; LANES]; PART];
                    width.open(level, &part, &mut out);
                    for (i, v) in values.iter().enumerate() {
                        let got = out[i % PART][i / PART];
                        let same = got.to_bits() == v.to_bits() || got == 0.0 && *v == 0.0;
                        assert!(same || v.is_nan() && got.is_nan(), "{dtype} {level} {i}: {v} {got}");
                    }
                }
            }
        }
    }
}
