//! Conversion of 16-bit floats: f16 and bf16 to f32, f32 to bf16 with rounding to nearest even.
//!
//! Everything is branch-free integer or exact f32 arithmetic, so that loops over it vectorize and
//! results are the same on every instruction set.

use crate::isa::dispatch::per_isa;

/// Adding `1.5 * 2^23` rounds an f32 to an integer, ties to even, and leaves the integer in the low
/// bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// f16 to f32: integer operations and one exact multiplication, so that a loop over it vectorizes.
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
    let size = u32::from(bits & !0x8000) << 13;
    // 2^112, the ratio of the exponent biases, also normalizes subnormal f16.
    let value = f32::from_bits(size) * f32::from_bits(0x7780_0000);
    let value = if bits & !0x8000 >= 0x7c00 { f32::from_bits(size | 0x7f80_0000) } else { value };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// bf16 to f32, exact.
#[inline(always)]
pub(crate) fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens two packed bf16 to f32, the low half first.
#[inline(always)]
pub(crate) fn bf16_pair(pair: u32) -> [f32; 2] {
    [pair << 16, pair & 0xffff_0000].map(f32::from_bits)
}

/// Widens two packed f16 to f32, the low half first.
#[inline(always)]
pub(crate) fn f16_pair(pair: u32) -> [f32; 2] {
    [half(pair as u16), half((pair >> 16) as u16)]
}

/// The upper 16 bits of an f32: exact if it holds a bf16, else truncation.
#[inline(always)]
pub(crate) fn high_half(float: f32) -> u16 {
    (float.to_bits() >> 16) as u16
}

/// f32 to bf16, round to nearest even. Infinities stay infinite, NaNs stay NaNs (quiet).
#[inline(always)]
pub(crate) fn round_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { (bits >> 16 | 0x40) as u16 } else { rounded as u16 }
}

#[inline(always)]
fn round_to_bf16_body(x: &[f32], bits: &mut [u16]) {
    bits.iter_mut().zip(x).for_each(|(b, &v)| *b = round_bf16(v));
}

per_isa! {
    /// Rounds to the nearest bf16.
    round_to_bf16(x: &[f32], bits: &mut [u16]) => round_to_bf16_body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                got == want && got.to_bits() >> 31 == want.to_bits() >> 31 || got.is_nan() && want.is_nan()
            );
        }
    }
}
