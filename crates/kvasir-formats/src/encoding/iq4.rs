//! Dequantizes `IQ4_NL` and `IQ4_XS`: four-bit indices into a nonlinear codebook.

use crate::encoding::f16_at;

/// The IQ4 codebook: denser around zero, where most weights are.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Scale of sub-block `i` of an `IQ4_XS` superblock: four low bits and two high bits, packed
/// separately, minus 32.
pub fn iq4_xs_scale(i: usize, block: &[u8; 136]) -> i8 {
    let low = block[4 + i / 2] >> (i % 2 * 4) & 15;
    let high = u16::from_le_bytes([block[2], block[3]]) >> (i * 2) & 3;
    (low | (high as u8) << 4) as i8 - 32
}

fn values(codes: &[u8; 16], d: f32, y: &mut [f32; 32]) {
    for (j, &q) in codes.iter().enumerate() {
        y[j] = d * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        y[j + 16] = d * f32::from(IQ4_VALUES[usize::from(q >> 4)]);
    }
}

/// IQ4_NL: `x = d * IQ4_VALUES[q]`. Layout: f16 d, 16 bytes of nibbles.
pub(super) fn nl(b: &[u8; 18], y: &mut [f32; 32]) {
    if let Some(codes) = b.last_chunk() {
        values(codes, f16_at(b, 0), y);
    }
}

/// IQ4_XS: `x = d * scale_i * IQ4_VALUES[q]`, with a six-bit scale per 32 values.
///
/// Layout: f16 d, 2 bytes of high scale bits, 4 of low scale bits, 128 bytes of nibbles.
pub(super) fn xs(b: &[u8; 136], y: &mut [f32; 256]) {
    let parts = b[8..].as_chunks().0.iter().zip(y.as_chunks_mut().0);
    for (i, (codes, y)) in parts.enumerate() {
        values(codes, f16_at(b, 0) * f32::from(iq4_xs_scale(i, b)), y);
    }
}
