//! Dequantizes K-quants: superblocks of 256 in groups of 16 or 32, with integer scales under one
//! f16 scale.
//!
//! `x = d * scale_g * q` for Q3_K and Q6_K; `x = d * scale_g * q - dmin * min_g` for Q2_K, Q4_K and
//! Q5_K.

use crate::encoding::f16_at;
use crate::encoding::k_scales::{q3_k_scale, q45_k_scale_min};

/// Q2_K: two-bit codes; 4-bit scale and min of 16 values share a byte.
pub(super) fn q2_k(b: &[u8; 84], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 80), f16_at(b, 82));
    for (group, values) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // 128 values share 32 bytes: four 2-bit planes, two groups per plane.
        let (part, plane, side) = (group / 8, group % 8 / 2, group % 2);
        let (scale, offset) = (d * f32::from(b[group] & 0xf), dmin * f32::from(b[group] >> 4));
        let codes = &b[16 + part * 32 + side * 16..];
        for (v, &q) in values.iter_mut().zip(codes) {
            *v = scale * f32::from(q >> (2 * plane) & 3) - offset;
        }
    }
}

/// Q3_K: two low bits per code, the third (inverted) in a separate bit mask.
pub(super) fn q3_k(b: &[u8; 110], y: &mut [f32; 256]) {
    let (mask, codes, d) = (&b[..32], &b[32..96], f16_at(b, 108));
    for (group, values) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (part, plane, side) = (group / 8, group % 8 / 2, group % 2);
        let scale = d * f32::from(q3_k_scale(group, &b[96..108]));
        for (l, v) in values.iter_mut().enumerate() {
            let low = codes[part * 32 + side * 16 + l] >> (2 * plane) & 3;
            let high = mask[side * 16 + l] >> (part * 4 + plane) & 1;
            *v = scale * f32::from(low as i8 - if high == 0 { 4 } else { 0 });
        }
    }
}

/// Q4_K: four-bit codes in groups of 32.
///
/// Layout: f16 d, f16 dmin, 12 bytes of six-bit scales and mins, 128 bytes of nibbles.
pub(super) fn q4_k(b: &[u8; 144], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    for (group, values) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = q45_k_scale_min(group, &b[4..16]);
        let (scale, offset) = (d * f32::from(sc), dmin * f32::from(m));
        let codes = &b[16 + group / 2 * 32..];
        for (v, &q) in values.iter_mut().zip(codes) {
            *v = scale * f32::from(if group % 2 == 0 { q & 0xf } else { q >> 4 }) - offset;
        }
    }
}

/// Q5_K: five-bit codes in groups of 32.
///
/// Layout: f16 d, f16 dmin, 12 bytes of scales and mins, 32 bytes of fifth bits, 128 of nibbles.
pub(super) fn q5_k(b: &[u8; 176], y: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(b, 0), f16_at(b, 2));
    let high = &b[16..48];
    for (group, values) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (sc, m) = q45_k_scale_min(group, &b[4..16]);
        let (scale, offset) = (d * f32::from(sc), dmin * f32::from(m));
        let codes = &b[48 + group / 2 * 32..];
        for ((v, &q), &h) in values.iter_mut().zip(codes).zip(high) {
            let low = if group % 2 == 0 { q & 0xf } else { q >> 4 };
            *v = scale * f32::from(low | (h >> group & 1) << 4) - offset;
        }
    }
}

/// Q6_K: six-bit codes in groups of 16, offset by 32.
///
/// Layout: 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, f16 d.
pub(super) fn q6_k(b: &[u8; 210], y: &mut [f32; 256]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], f16_at(b, 208));
    for (group, values) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // 128 values: two rows of 32 low nibbles, then their high nibbles; the high 2 bits in four
        // planes.
        let (part, quarter) = (group / 4, group % 4);
        for (l, v) in values.iter_mut().enumerate() {
            let nibbles = low[part * 64 + quarter % 2 * 32 + l];
            let nibble = if quarter < 2 { nibbles & 0xf } else { nibbles >> 4 };
            let q = nibble | (high[part * 32 + l] >> (2 * quarter) & 3) << 4;
            let scale = scales[part * 8 + quarter * 2 + l / 16] as i8;
            *v = d * f32::from(scale) * f32::from(q as i8 - 32);
        }
    }
}
