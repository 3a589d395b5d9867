//! Quantizes to K-quants (superblocks of 256), bit-exact with llama.cpp's reference.
//!
//! Per superblock: fit a scale (and min) per group (`k_fit`), quantize the scales, then requantize
//! the values with the rounded scales.

use crate::encoding::k_fit::{Search, affine, nearest, one_by_one, symmetric};
use crate::encoding::k_scales::{put_q3_k_scale, put_q45_k_scale_min, q45_k_scale_min};
use crate::encoding::{f16_at, put_f16};

/// Packs 2-bit codes: 128 values in four planes of 32 bytes.
fn two_bits(codes: &[u8; 256], out: &mut [u8]) {
    for (part, bytes) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, byte) in bytes.iter_mut().enumerate() {
            let at = |plane: usize| (codes[part * 128 + plane * 32 + l] & 3) << (2 * plane);
            *byte = at(0) | at(1) | at(2) | at(3);
        }
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, &v| if v > m { v } else { m })
}

pub(super) fn q2_k(x: &[f32; 256]) -> [u8; 84] {
    let mut b = [0; 84];
    let mut codes = [0; 256];
    let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
    let search = Search { max_code: 3, first: -0.5, steps: 15, absolute: true };
    for (j, group) in x.as_chunks::<16>().0.iter().enumerate() {
        (scales[j], mins[j]) = affine(group, &group.map(f32::abs), search, &mut codes[16 * j..][..16]);
    }
    let (max_scale, max_min) = (largest(&scales), largest(&mins));
    if max_scale > 0.0 {
        let inverse = 15.0 / max_scale;
        for j in 0..16 {
            b[j] = nearest(inverse * scales[j]) as u8;
        }
        put_f16(&mut b, 80, max_scale / 15.0);
    }
    if max_min > 0.0 {
        let inverse = 15.0 / max_min;
        for j in 0..16 {
            b[j] |= (nearest(inverse * mins[j]) << 4) as u8;
        }
        put_f16(&mut b, 82, max_min / 15.0);
    }
    for (j, group) in x.as_chunks::<16>().0.iter().enumerate() {
        let d = f16_at(&b, 80) * f32::from(b[j] & 0xf);
        if d == 0.0 {
            continue;
        }
        let offset = f16_at(&b, 82) * f32::from(b[j] >> 4);
        for (c, v) in codes[16 * j..].iter_mut().zip(group) {
            *c = nearest((v + offset) / d).clamp(0, 3) as u8;
        }
    }
    two_bits(&codes, &mut b[16..80]);
    b
}

pub(super) fn q3_k(x: &[f32; 256]) -> [u8; 110] {
    let mut b = [0; 110];
    let mut codes = [0; 256];
    let mut scales = [0.0f32; 16];
    let mut extreme = 0.0f32;
    for (j, group) in x.as_chunks::<16>().0.iter().enumerate() {
        scales[j] = one_by_one(group, &mut codes[16 * j..][..16]);
        if scales[j].abs() > extreme.abs() {
            extreme = scales[j];
        }
    }
    let mut small = [-32i8; 16];
    if extreme != 0.0 {
        let inverse = -32.0 / extreme;
        for (j, s) in small.iter_mut().enumerate() {
            *s = (nearest(inverse * scales[j]) as i8).clamp(-32, 31);
            put_q3_k_scale(j, *s, &mut b[96..108]);
        }
        put_f16(&mut b, 108, 1.0 / inverse);
    }
    for (j, group) in x.as_chunks::<16>().0.iter().enumerate() {
        let d = f16_at(&b, 108) * f32::from(small[j]);
        if d == 0.0 {
            continue;
        }
        for (c, v) in codes[16 * j..].iter_mut().zip(group) {
            *c = (nearest(v / d).clamp(-4, 3) + 4) as u8;
        }
    }
    for (j, code) in codes.iter().enumerate() {
        if *code > 3 {
            b[j % 32] |= 1 << (j / 32);
        }
    }
    two_bits(&codes, &mut b[32..96]); // keeps the low two bits
    b
}

/// Shared by Q4_K and Q5_K: the 16-byte header (d, dmin, packed 6-bit scales and mins) and the
/// codes.
fn k4(x: &[f32; 256], search: Search, b: &mut [u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    let (mut scales, mut mins) = ([0.0; 8], [0.0; 8]);
    for (j, group) in x.as_chunks::<32>().0.iter().enumerate() {
        let mut squares = 0.0f32;
        for v in group {
            squares += v * v;
        }
        let average = (squares / 32.0).sqrt();
        let weights = group.map(|v| average + v.abs());
        (scales[j], mins[j]) = affine(group, &weights, search, &mut codes[32 * j..][..32]);
    }
    let (max_scale, max_min) = (largest(&scales), largest(&mins));
    let inverse = |max: f32| if max > 0.0 { 63.0 / max } else { 0.0 };
    let (inverse_scale, inverse_min) = (inverse(max_scale), inverse(max_min));
    for j in 0..8 {
        let scale = (nearest(inverse_scale * scales[j]) as u8).min(63);
        let min = (nearest(inverse_min * mins[j]) as u8).min(63);
        put_q45_k_scale_min(j, (scale, min), &mut b[4..16]);
    }
    put_f16(b, 0, max_scale / 63.0);
    put_f16(b, 2, max_min / 63.0);
    for (j, group) in x.as_chunks::<32>().0.iter().enumerate() {
        let (scale, min) = q45_k_scale_min(j, &b[4..16]);
        let d = f16_at(b, 0) * f32::from(scale);
        if d == 0.0 {
            continue;
        }
        let offset = f16_at(b, 2) * f32::from(min);
        for (c, v) in codes[32 * j..].iter_mut().zip(group) {
            *c = nearest((v + offset) / d).clamp(0, search.max_code) as u8;
        }
    }
    codes
}

fn nibbles(codes: &[u8; 256], out: &mut [u8]) {
    for (pair, bytes) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[pair * 64 + l] & 0xf | codes[pair * 64 + 32 + l] << 4;
        }
    }
}

pub(super) fn q4_k(x: &[f32; 256]) -> [u8; 144] {
    let mut b = [0; 144];
    let codes = k4(x, Search { max_code: 15, first: -1.0, steps: 20, absolute: false }, &mut b);
    nibbles(&codes, &mut b[16..]);
    b
}

pub(super) fn q5_k(x: &[f32; 256]) -> [u8; 176] {
    let mut b = [0; 176];
    let codes = k4(x, Search { max_code: 31, first: -0.5, steps: 15, absolute: false }, &mut b);
    for (j, code) in codes.iter().enumerate() {
        b[16 + j % 32] |= (code >> 4 & 1) << (j / 32);
    }
    nibbles(&codes, &mut b[48..]);
    b
}

pub(super) fn q6_k(x: &[f32; 256]) -> [u8; 210] {
    let mut b = [0; 210];
    let mut codes = [0; 256];
    let mut scales = [0.0f32; 16];
    let mut extreme = 0.0f32;
    for (j, group) in x.as_chunks::<16>().0.iter().enumerate() {
        scales[j] = symmetric(32, group, &mut codes[16 * j..][..16]);
        if scales[j].abs() > extreme.abs() {
            extreme = scales[j];
        }
    }
    if extreme.abs() < 1e-15 {
        return b;
    }
    let inverse = -128.0 / extreme;
    put_f16(&mut b, 208, 1.0 / inverse);
    for (j, group) in x.as_chunks::<16>().0.iter().enumerate() {
        let scale = nearest(inverse * scales[j]).min(127) as i8;
        b[192 + j] = scale as u8;
        let d = f16_at(&b, 208) * f32::from(scale);
        if d == 0.0 {
            continue;
        }
        for (c, v) in codes[16 * j..].iter_mut().zip(group) {
            *c = (nearest(v / d).clamp(-32, 31) + 32) as u8;
        }
    }
    for part in 0..2 {
        for l in 0..32 {
            let q = |quarter: usize| codes[part * 128 + quarter * 32 + l];
            b[part * 64 + l] = q(0) & 0xf | q(2) << 4;
            b[part * 64 + 32 + l] = q(1) & 0xf | q(3) << 4;
            b[128 + part * 32 + l] = q(0) >> 4 | q(1) >> 4 << 2 | q(2) >> 4 << 4 | q(3) >> 4 << 6;
        }
    }
    b
}
