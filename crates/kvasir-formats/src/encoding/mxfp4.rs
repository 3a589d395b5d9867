/// The sixteen 4-bit floats (E2M1), doubled so that they are whole.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that a scale byte stands for, to go with the doubled values: 2^(e - 128).
pub fn e8m0_half(e: u8) -> f32 {
    // The two smallest are subnormal.
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

pub(super) fn decode(b: &[u8; 17], y: &mut [f32; 32]) {
    let d = e8m0_half(b[0]);
    for j in 0..16 {
        let q = b[1 + j];
        y[j] = f32::from(E2M1_DOUBLED[usize::from(q & 0xf)]) * d;
        y[j + 16] = f32::from(E2M1_DOUBLED[usize::from(q >> 4)]) * d;
    }
}

#[cfg(test)]
mod tests {
    use super::e8m0_half;

    #[test]
    fn scales_are_powers_of_two_over_the_whole_range() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(e8m0_half(e)), 2f64.powi(i32::from(e) - 128), "{e}");
        }
    }
}
