//! MXFP4: 32 four-bit floats (E2M1) with one power-of-two scale (E8M0), in GGUF layout.
//!
//! `x = E2M1_DOUBLED[q] * 2^(e - 128)`. Doubled values are integers and fit an
//! `i8` table.

/// The sixteen E2M1 values, doubled to be integers.
pub const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half the E8M0 scale, `2^(e - 128)`, to match the doubled values.
pub fn e8m0_half(e: u8) -> f32 {
    // The two smallest results are subnormal in f32.
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

/// The code of the nearest value; the first on a tie.
fn nearest_code(v: f32, d: f32) -> u8 {
    let (mut best, mut least) = (0, f32::INFINITY);
    for (code, &value) in (0u8..).zip(&E2M1_DOUBLED) {
        let error = (f32::from(value) * d - v).abs();
        if error < least {
            (best, least) = (code, error);
        }
    }
    best
}

/// Scale `2^(floor(log2(max)) - 2)`, so that the largest value maps to the largest codes.
pub(super) fn encode(x: &[f32; 32]) -> [u8; 17] {
    let mut b = [0; 17];
    let max = x.iter().fold(0.0, |m: f32, v| if m < v.abs() { v.abs() } else { m });
    if max > 0.0 {
        b[0] = (max.log2().floor() - 2.0 + 127.0) as i32 as u8;
    }
    let d = e8m0_half(b[0]);
    for j in 0..16 {
        b[1 + j] = nearest_code(x[j], d) | nearest_code(x[j + 16], d) << 4;
    }
    b
}

#[cfg(test)]
mod tests {
    use crate::encoding::mxfp4::e8m0_half;

    #[test]
    fn mxfp4_scales_are_exact_over_their_range() {
        for e in 0..=255u8 {
            assert_eq!(f64::from(e8m0_half(e)), 2f64.powi(i32::from(e) - 128), "{e}");
        }
    }
}
