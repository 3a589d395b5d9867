//! Floats of 16 bits, and rounding.

/// Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// What these bits of an f16 say. In integers and one exact product, so that all rows' are made at once.
#[inline(always)]
pub(crate) fn half(bits: u16) -> f32 {
    let size = u32::from(bits & !0x8000) << 13;
    // A power of two between the two types' least exponents makes subnormal numbers normal, too.
    let value = f32::from_bits(size) * f32::from_bits(0x7780_0000);
    let value = if bits & !0x8000 >= 0x7c00 { f32::from_bits(size | 0x7f80_0000) } else { value };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// What these bits of a bf16 say.
#[inline(always)]
pub(crate) fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bits of a bf16 that is held as a float.
#[inline(always)]
pub(crate) fn high_half(float: f32) -> u16 {
    (float.to_bits() >> 16) as u16
}

/// The nearest bf16, ties to even. Infinities stay; a NaN stays a NaN.
#[inline(always)]
pub(crate) fn round_bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { (bits >> 16 | 0x40) as u16 } else { rounded as u16 }
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
