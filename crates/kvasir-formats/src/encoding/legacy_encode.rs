//! Quantizes to the legacy block types (blocks of 32), bit-exact with llama.cpp's reference.

use crate::encoding::put_f16;

/// The first value of the largest magnitude.
fn extreme(x: &[f32]) -> f32 {
    let (mut size, mut value) = (0.0, 0.0);
    for &v in x {
        if size < f32::abs(v) {
            (size, value) = (v.abs(), v);
        }
    }
    value
}

fn range(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::MAX, -f32::MAX), |(min, max), &v| {
        (if v < min { v } else { min }, if v > max { v } else { max })
    })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Packs 4- or 5-bit codes: low nibbles, and for 5 bits the fifth bits in four bytes.
fn pack(codes: &[u8; 32], nibbles: &mut [u8], fifths: Option<&mut [u8]>) {
    let mut high = 0u32;
    for j in 0..16 {
        let (a, b) = (codes[j], codes[j + 16]);
        nibbles[j] = a & 0xf | b << 4;
        high |= u32::from(a >> 4 & 1) << j | u32::from(b >> 4 & 1) << (j + 16);
    }
    if let Some(fifths) = fifths {
        fifths.copy_from_slice(&high.to_le_bytes());
    }
}

pub(super) fn q4_0(x: &[f32; 32]) -> [u8; 18] {
    let mut b = [0; 18];
    let d = extreme(x) / -8.0;
    let id = inverse(d);
    put_f16(&mut b, 0, d);
    let codes = x.map(|v| ((v * id + 8.5) as i8 as u8).min(15));
    pack(&codes, &mut b[2..], None);
    b
}

pub(super) fn q4_1(x: &[f32; 32]) -> [u8; 20] {
    let mut b = [0; 20];
    let (min, max) = range(x);
    let d = (max - min) / 15.0;
    let id = inverse(d);
    put_f16(&mut b, 0, d);
    put_f16(&mut b, 2, min);
    let codes = x.map(|v| (((v - min) * id + 0.5) as i8 as u8).min(15));
    pack(&codes, &mut b[4..], None);
    b
}

pub(super) fn q5_0(x: &[f32; 32]) -> [u8; 22] {
    let mut b = [0; 22];
    let d = extreme(x) / -16.0;
    let id = inverse(d);
    put_f16(&mut b, 0, d);
    let codes = x.map(|v| ((v * id + 16.5) as i8 as u8).min(31));
    let (head, nibbles) = b.split_at_mut(6);
    pack(&codes, nibbles, Some(&mut head[2..]));
    b
}

pub(super) fn q5_1(x: &[f32; 32]) -> [u8; 24] {
    let mut b = [0; 24];
    let (min, max) = range(x);
    let d = (max - min) / 31.0;
    let id = inverse(d);
    put_f16(&mut b, 0, d);
    put_f16(&mut b, 2, min);
    let codes = x.map(|v| ((v - min) * id + 0.5) as u8);
    let (head, nibbles) = b.split_at_mut(8);
    pack(&codes, nibbles, Some(&mut head[4..]));
    b
}

pub(super) fn q8_0(x: &[f32; 32]) -> [u8; 34] {
    let mut b = [0; 34];
    let d = x.iter().fold(0.0, |m: f32, v| m.max(v.abs())) / 127.0;
    let id = inverse(d);
    put_f16(&mut b, 0, d);
    for (code, v) in b[2..].iter_mut().zip(x) {
        *code = (v * id).round() as i8 as u8; // rounds half away from zero
    }
    b
}
