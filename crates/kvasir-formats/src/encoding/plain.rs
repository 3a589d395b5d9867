//! Decodes unquantized element types: f32, f16, bf16, f64, FP8 (E4M3, E8M0) and integers.

use crate::dtype::DType;
use crate::encoding::mxfp4::e8m0_half;
use half::{bf16, f16};

/// Converts elements to f32. Integers are rounded to the nearest f32. `dtype` must be unquantized.
pub(super) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        DType::F8E4M3 => each(bytes, out, |[b]| f8_e4m3(b)),
        DType::F8E8M0 => each(bytes, out, |[b]| f8_e8m0(b)),
        DType::I8 => each(bytes, out, |b| i8::from_le_bytes(b).into()),
        DType::I16 => each(bytes, out, |b| i16::from_le_bytes(b).into()),
        DType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        DType::U8 | DType::Bool => each(bytes, out, |[b]| b.into()),
        _ => unreachable!("{dtype} is a block type"),
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (b, v) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *v = decode(*b);
    }
}

/// FP8 E4M3: 4 exponent bits (bias 7), 3 mantissa bits; no infinities, 0x7f and 0xff are NaN.
pub fn f8_e4m3(byte: u8) -> f32 {
    let size = byte & 0x7f;
    let value = match size {
        0x7f => f32::NAN,
        // Subnormal: mantissa × 2^-9.
        0..8 => f32::from(size) / 512.0,
        // Shift exponent and mantissa to their f32 position and adjust the exponent bias.
        _ => f32::from_bits((u32::from(size) << 20) + ((127 - 7) << 23)),
    };
    f32::from_bits(value.to_bits() | u32::from(byte & 0x80) << 24)
}

/// E8M0: `2^(byte - 127)`; 0xff is NaN.
fn f8_e8m0(byte: u8) -> f32 {
    if byte == 0xff { f32::NAN } else { 2.0 * e8m0_half(byte) }
}

#[cfg(test)]
mod tests {
    use crate::encoding::plain::{f8_e4m3, f8_e8m0};

    #[test]
    fn e8m0_values_are_powers_of_two() {
        for byte in 0..255u8 {
            assert_eq!(f64::from(f8_e8m0(byte)), 2f64.powi(i32::from(byte) - 127), "{byte}");
        }
        assert!(f8_e8m0(0xff).is_nan());
    }

    #[test]
    fn e4m3_has_its_published_extremes() {
        assert_eq!(f8_e4m3(0x7e), 448.0);
        assert_eq!(f8_e4m3(0x38), 1.0);
        assert_eq!(f8_e4m3(0x01), 2f32.powi(-9));
        assert_eq!(f8_e4m3(0x08), 2f32.powi(-6));
        assert_eq!(f8_e4m3(0xb8), -1.0);
        assert!(f8_e4m3(0xff).is_nan());
        assert_eq!(f8_e4m3(0x80).to_bits(), (-0.0f32).to_bits());
    }
}
