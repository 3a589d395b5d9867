//! Storage width of weights that are multiplied in f32: f32, bf16, f16, FP8 E4M3 or MXFP4, all
//! without loss.
//!
//! `encode_row` packs a row, `Width::dequantize` unpacks one part to f32. The tests check both
//! against `kvasir_formats::encoding` on every instruction set.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::float16::{bf16, half, high_half};
use crate::isa::tile::LANES;
use crate::weights::f32::{Dequantized, PART, fp8, mxfp4};
use kvasir_formats::DType;

/// Storage format of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// FP8 E4M3 with an f32 scale per 32 inputs of an output.
    Fp8,
    /// MXFP4: E2M1 with a power-of-two scale per 32 inputs of an output.
    Mxfp4,
}

impl Width {
    /// The narrowest lossless width for weights stored as `dtype`. Scales must be part of the
    /// encoding, not of another tensor.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::BF16 => Self::Bf16,
            DType::F16 => Self::F16,
            DType::Mxfp4 => Self::Mxfp4,
            _ => Self::F32,
        }
    }

    /// Bytes of [`PART`] inputs of a panel.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F32 => PART * LANES * 4,
            Self::Bf16 | Self::F16 => PART * LANES * 2,
            Self::Fp8 => fp8::PART_BYTES,
            Self::Mxfp4 => mxfp4::PART_BYTES,
        }
    }

    /// Encodes one output's 32 values into lane `lane` of a part.
    #[inline(always)]
    fn encode(self, lane: usize, values: &[f32; PART], part: &mut [u8]) {
        match self {
            Self::F32 => {
                for (bytes, v) in part.as_chunks_mut::<{ LANES * 4 }>().0.iter_mut().zip(values) {
                    bytes[lane * 4..lane * 4 + 4].copy_from_slice(&v.to_le_bytes());
                }
            }
            Self::Bf16 | Self::F16 => {
                for (bytes, v) in part.as_chunks_mut::<{ LANES * 2 }>().0.iter_mut().zip(values) {
                    let bits = match self {
                        Self::Bf16 => high_half(*v),
                        _ => half::f16::from_f32(*v).to_bits(),
                    };
                    bytes[lane * 2..lane * 2 + 2].copy_from_slice(&bits.to_le_bytes());
                }
            }
            Self::Fp8 => unreachable!("numbers do not say what their scales were"),
            Self::Mxfp4 => mxfp4::encode(lane, values, part),
        }
    }

    /// Dequantizes a part.
    #[inline(always)]
    pub(crate) fn dequantize(self, isa: Isa, part: &[u8], out: &mut Dequantized) {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() {
            match self {
                // SAFETY: the instruction set implies the instructions.
                Self::Fp8 => return unsafe { fp8::dequantize_512(part, out) },
                // SAFETY: as above.
                Self::Mxfp4 => return unsafe { mxfp4::dequantize_512(part, out) },
                _ => {}
            }
        }
        let _ = isa;
        match self {
            Self::F32 => {
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
            Self::F16 => {
                for (out, bytes) in out.iter_mut().zip(part.as_chunks::<{ LANES * 2 }>().0) {
                    for (v, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                        *v = half(u16::from_le_bytes(*bytes));
                    }
                }
            }
            Self::Fp8 => fp8::dequantize(part, out),
            Self::Mxfp4 => mxfp4::dequantize(part, out),
        }
    }
}

#[inline(always)]
fn encode_row_body(width: Width, lane: usize, values: &[f32], panel: &mut [u8]) {
    let (parts, rest) = values.as_chunks::<PART>();
    let mut places = panel.chunks_exact_mut(width.bytes());
    for (values, part) in parts.iter().zip(&mut places) {
        width.encode(lane, values, part);
    }
    if let Some(part) = places.next() {
        let mut last = [0.0; PART];
        last[..rest.len()].copy_from_slice(rest);
        width.encode(lane, &last, part);
    }
}

per_isa! {
    /// Encodes one output's row into lane `lane` of its panel, zero-padded to whole parts.
    encode_row(width: Width, lane: usize, values: &[f32], panel: &mut [u8]) => encode_row_body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;
    use kvasir_formats::encoding;

    /// Checks thon every instruction set dequantizes `part` to `values(lane, input)`.
    fn check(width: Width, part: &[u8], values: impl Fn(usize, usize) -> f32) {
        for isa in isas() {
            let mut out = [[f32::NAN; LANES]; PART];
            width.dequantize(isa, part, &mut out);
            for (i, out) in out.iter().enumerate() {
                for (lane, got) in out.iter().enumerate() {
                    let want = values(lane, i);
                    let same = got.to_bits() == want.to_bits() || *got == 0.0 && want == 0.0;
                    let same = same || want.is_nan() && got.is_nan();
                    assert!(same, "{width:?} {isa} {lane} {i}: {want} {got}");
                }
            }
        }
    }

    #[test]
    fn dequantize_inverts_encode() {
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
                    encode_row(Isa::detect(), width, lane, values, &mut part);
                }
                check(width, &part, |lane, i| values[lane * PART + i]);
            }
        }
    }

    #[test]
    fn fp8_weights_are_codes_times_scales() {
        // Includes scales whose products are subnormal, infinite or NaN.
        for scale in [1.0, 0.012_345, -3.7e-5, 2f32.powi(-126), 1e-44, 1e37, f32::INFINITY, f32::NAN] {
            for from in (0..=255u8).step_by(PART) {
                let code = |lane: usize, i: usize| from + ((i + lane) % PART) as u8;
                let scale = |lane: usize| scale * (1.0 + lane as f32);
                let mut part = vec![0; Width::Fp8.bytes()];
                for lane in 0..LANES {
                    let codes: [u8; PART] = std::array::from_fn(|i| code(lane, i));
                    fp8::put_codes(lane, &codes, |_| scale(lane), &mut part);
                }
                check(Width::Fp8, &part, |lane, i| encoding::f8_e4m3(code(lane, i)) * scale(lane));
            }
        }
    }

    #[test]
    fn mxfp4_weights_are_codes_times_scales() {
        for seed in 0..64u32 {
            let byte = |i: usize| ((i as u32 + 1).wrapping_mul(0x9e37_79b9 ^ seed << 7) >> 21) as u8;
            let codes: Vec<u8> = (0..LANES * PART / 2).map(byte).collect();
            let power = |lane: usize| (seed as usize * 4 + lane) as u8;
            let mut part = vec![0; Width::Mxfp4.bytes()];
            for (lane, codes) in codes.chunks(PART / 2).enumerate() {
                mxfp4::put_codes(lane, (codes, &[power(lane)]), &mut part);
            }
            check(Width::Mxfp4, &part, |lane, i| {
                let code = codes[lane * PART / 2 + i / 2] >> (i % 2 * 4) & 0xf;
                f32::from(encoding::E2M1_DOUBLED[usize::from(code)]) * encoding::e8m0_half(power(lane))
            });
        }
    }
}
