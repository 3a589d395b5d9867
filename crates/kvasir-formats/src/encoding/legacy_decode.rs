//! Dequantizes the legacy block types Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 (blocks of 32).
//!
//! `x = d * (q - offset)` or `x = d * q + m`. Low nibbles hold the first half of a block, high
//! nibbles the second.

use crate::encoding::f16_at;

/// `x = d * (q - 8)`. Layout: f16 d, 16 bytes of nibbles.
pub(super) fn q4_0(b: &[u8; 18], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for j in 0..16 {
        let q = b[2 + j];
        y[j] = f32::from(i16::from(q & 0xf) - 8) * d;
        y[j + 16] = f32::from(i16::from(q >> 4) - 8) * d;
    }
}

/// `x = d * q + m`. Layout: f16 d, f16 m, 16 bytes of nibbles.
pub(super) fn q4_1(b: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    for j in 0..16 {
        let q = b[4 + j];
        y[j] = f32::from(q & 0xf) * d + m;
        y[j + 16] = f32::from(q >> 4) * d + m;
    }
}

/// The fifth bits of codes `j` and `j + 16`, shifted to bit 4.
fn fifth_bits(bits: [u8; 4], j: usize) -> (u8, u8) {
    let bits = u32::from_le_bytes(bits);
    (((bits >> j) as u8 & 1) << 4, ((bits >> (j + 16)) as u8 & 1) << 4)
}

/// `x = d * (q - 16)`. Layout: f16 d, 4 bytes of fifth bits, 16 bytes of nibbles.
pub(super) fn q5_0(b: &[u8; 22], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for j in 0..16 {
        let (lo, hi) = fifth_bits([b[2], b[3], b[4], b[5]], j);
        let q = b[6 + j];
        y[j] = f32::from(i16::from(q & 0xf | lo) - 16) * d;
        y[j + 16] = f32::from(i16::from(q >> 4 | hi) - 16) * d;
    }
}

/// `x = d * q + m`. Layout: f16 d, f16 m, 4 bytes of fifth bits, 16 bytes of nibbles.
pub(super) fn q5_1(b: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (f16_at(b, 0), f16_at(b, 2));
    for j in 0..16 {
        let (lo, hi) = fifth_bits([b[4], b[5], b[6], b[7]], j);
        let q = b[8 + j];
        y[j] = f32::from(q & 0xf | lo) * d + m;
        y[j + 16] = f32::from(q >> 4 | hi) * d + m;
    }
}

/// `x = d * q`. Layout: f16 d, 32 signed bytes.
pub(super) fn q8_0(b: &[u8; 34], y: &mut [f32; 32]) {
    let d = f16_at(b, 0);
    for (v, &q) in y.iter_mut().zip(&b[2..]) {
        *v = f32::from(q as i8) * d;
    }
}
