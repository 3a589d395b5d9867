//! One superblock of a row, read out of the bytes of a published encoding.

use super::format::{Format, SUPER};
use half::{bf16, f16};
use kvasir_formats::DType;

/// 256 weights of one row as integers. Codes are unsigned; their bias is the format's.
#[derive(Clone)]
pub(crate) struct Super {
    pub(crate) code: [u8; SUPER],
    pub(crate) scale: [i16; 16],
    pub(crate) min: [i8; 16],
    pub(crate) d: u16,
    pub(crate) dmin: u16,
}

impl Super {
    /// Weights that are all zero.
    pub(crate) fn zero(format: Format) -> Self {
        Self { code: [format.bias as u8; SUPER], scale: [0; 16], min: [0; 16], d: 0, dmin: 0 }
    }

    /// The superblock of `bytes`, which holds 256 weights or, at the end of a row, fewer.
    pub(crate) fn read(dtype: DType, format: Format, bytes: &[u8]) -> Self {
        let mut out = Self::zero(format);
        match dtype {
            DType::Q2K => out.q2_k(bytes),
            DType::Q3K => out.q3_k(bytes),
            DType::Q4K => out.q45_k(bytes, None),
            DType::Q5K => out.q45_k(bytes, bytes.get(16..48)),
            DType::Q6K => out.q6_k(bytes),
            _ => out.legacy(dtype, format, bytes),
        }
        out
    }

    fn legacy(&mut self, dtype: DType, format: Format, bytes: &[u8]) {
        let (mut d, mut m) = ([0f32; 8], [0f32; 8]);
        let blocks = bytes.chunks_exact(dtype.block_bytes()).zip(self.code.as_chunks_mut::<32>().0);
        for (b, (block, code)) in blocks.enumerate() {
            let (scales, rest) = block.split_at(if format.has_min { 4 } else { 2 });
            d[b] = half_at(scales, 0);
            if format.has_min {
                m[b] = half_at(scales, 2);
            }
            if format.bits == 8 {
                for (c, &q) in code.iter_mut().zip(rest) {
                    // A negative scale moves into the codes.
                    let q = q as i8;
                    *c = (if d[b] < 0.0 { q.saturating_neg() } else { q } as u8) ^ 0x80;
                }
                d[b] = d[b].abs();
                continue;
            }
            let (high, nibbles) = rest.split_at(if format.bits == 5 { 4 } else { 0 });
            let bit = |j: usize| high.get(j / 8).map_or(0, |h| (h >> (j % 8) & 1) << 4);
            for (j, &byte) in nibbles.iter().enumerate().take(16) {
                code[j] = byte & 15 | bit(j);
                code[j + 16] = byte >> 4 | bit(j + 16);
            }
        }
        // Products of scale and code must stay 16-bit integers.
        let most = match (format.bits, format.has_min) {
            (8, _) => 255.0,
            (4, false) => 4079.0,
            (4, true) | (5, false) => 2039.0,
            _ => 1049.0,
        };
        let (unit, bits) = unit(&d, most);
        self.d = bits;
        self.scale
            .iter_mut()
            .zip(d)
            .for_each(|(s, d)| *s = (d * unit).round_ties_even().clamp(-most, most) as i16);
        let (unit, bits) = self::unit(&m, 127.0);
        self.dmin = bits;
        self.min
            .iter_mut()
            .zip(m)
            .for_each(|(s, m)| *s = (m * unit).round_ties_even().clamp(-127.0, 127.0) as i8);
    }

    fn q2_k(&mut self, b: &[u8]) {
        for (i, &s) in b.iter().enumerate().take(16) {
            (self.scale[i], self.min[i]) = (i16::from(s & 15), (s >> 4) as i8);
        }
        for (i, code) in self.code.iter_mut().enumerate() {
            *code = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        }
        (self.d, self.dmin) = (bits_at(b, 80), bits_at(b, 82) ^ SIGN);
    }

    fn q3_k(&mut self, b: &[u8]) {
        let s = &b[96..108];
        for i in 0..16 {
            let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
            self.scale[i] = i16::from(low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
        }
        for (i, code) in self.code.iter_mut().enumerate() {
            let low = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
            *code = low | (b[i % 32] >> (i / 32) & 1) << 2;
        }
        self.d = bits_at(b, 108);
    }

    fn q45_k(&mut self, b: &[u8], high: Option<&[u8]>) {
        let s = &b[4..16];
        for i in 0..8 {
            let (scale, min) = if i < 4 {
                (s[i] & 63, s[i + 4] & 63)
            } else {
                (s[i + 4] & 15 | s[i - 4] >> 6 << 4, s[i + 4] >> 4 | s[i] >> 6 << 4)
            };
            (self.scale[i], self.min[i]) = (i16::from(scale), min as i8);
        }
        let low = &b[if high.is_some() { 48 } else { 16 }..];
        for (i, code) in self.code.iter_mut().enumerate() {
            let nibble = low[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15;
            *code = nibble | high.map_or(0, |h| (h[i % 32] >> (i / 32) & 1) << 4);
        }
        (self.d, self.dmin) = (bits_at(b, 0), bits_at(b, 2) ^ SIGN);
    }

    fn q6_k(&mut self, b: &[u8]) {
        for (i, code) in self.code.iter_mut().enumerate() {
            let (half, l) = (i / 128, i % 128);
            let low = b[half * 64 + l % 64] >> (l / 64 * 4) & 15;
            *code = low | (b[128 + half * 32 + l % 32] >> (l / 32 * 2) & 3) << 4;
        }
        for (scale, &s) in self.scale.iter_mut().zip(&b[192..208]) {
            *scale = i16::from(s as i8);
        }
        self.d = bits_at(b, 208);
    }
}

/// Sign bit of a 16-bit float.
const SIGN: u16 = 0x8000;

fn bits_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_bits(bits_at(bytes, at)).to_f32()
}

/// A bf16 unit in which the largest of `values` is at most `most`: its inverse and its bits.
fn unit(values: &[f32; 8], most: f32) -> (f32, u16) {
    let largest = values.iter().fold(0f32, |a, v| a.max(v.abs()));
    let exact = largest / most;
    let mut unit = bf16::from_f32(exact);
    if unit.to_f32() < exact {
        unit = bf16::from_bits(unit.to_bits() + 1);
    }
    let unit_f32 = unit.to_f32();
    if unit_f32.is_normal() { (1.0 / unit_f32, unit.to_bits()) } else { (0.0, 0) }
}
