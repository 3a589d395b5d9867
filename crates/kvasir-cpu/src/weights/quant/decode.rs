//! Decodes superblocks of 16 rows from GGUF and MXFP4 encodings to unsigned codes, scales and mins,
//! without loss.

use crate::isa::tile::LANES;
use crate::weights::quant::format::{BLOCK, Format, SUPERBLOCK, Scales};
use kvasir_formats::DType;
use kvasir_formats::encoding::{iq4_xs_scale, q3_k_scale, q45_k_scale_min};

/// Decoded superblocks of 16 rows.
pub(crate) struct Superblocks {
    pub(crate) code: [[u8; SUPERBLOCK]; LANES],
    /// Scales, `[sub-block][row]`: bits of 16-bit floats, or integers of 8 bits.
    pub(crate) scale: [[u16; LANES]; 16],
    pub(crate) min: [[u16; LANES]; 16],
    pub(crate) d: [u16; LANES],
    pub(crate) dmin: [u16; LANES],
}

impl Superblocks {
    pub(crate) const fn new() -> Self {
        let (scale, min) = ([[0; LANES]; 16], [[0; LANES]; 16]);
        Self { code: [[0; SUPERBLOCK]; LANES], scale, min, d: [0; LANES], dmin: [0; LANES] }
    }

    /// Decodes the superblocks in `rows`, 256 weights each, or fewer at the end of a row. Absent
    /// weights are zero.
    #[inline(always)]
    pub(crate) fn read(&mut self, dtype: DType, format: Format, rows: &[&[u8]; LANES]) {
        match (format.scales, dtype.block_bytes()) {
            (Scales::Integers, _) => self.k_rows(dtype, format, rows),
            (Scales::Bf16, _) => self.mxfp4(format, rows),
            (Scales::F16, 18) => self.legacy::<18>(format, rows),
            (Scales::F16, 20) => self.legacy::<20>(format, rows),
            (Scales::F16, 22) => self.legacy::<22>(format, rows),
            (Scales::F16, 24) => self.legacy::<24>(format, rows),
            (Scales::F16, 34) => self.legacy::<34>(format, rows),
            (Scales::F16, bytes) => unreachable!("no format has blocks of {bytes} bytes"),
        }
    }

    /// K types and IQ4_XS: superblocks of 256 weights with integer scales.
    #[inline(always)]
    fn k_rows(&mut self, dtype: DType, format: Format, rows: &[&[u8]; LANES]) {
        for (lane, bytes) in rows.iter().enumerate() {
            let mut row = Row { code: &mut self.code[lane], scale: [0; 16], min: [0; 16], d: 0, dmin: 0 };
            // No function pointers: they would not be compiled with the instruction set's target
            // features.
            if bytes.len() < dtype.block_bytes() {
                row.code.fill(0);
            } else if dtype == DType::Q2K {
                q2_k(bytes, &mut row);
            } else if dtype == DType::Q3K {
                q3_k(bytes, &mut row);
            } else if dtype == DType::Q4K {
                q45_k(bytes, 16, None, &mut row);
            } else if dtype == DType::Q5K {
                q45_k(bytes, 48, bytes.get(16..48), &mut row);
            } else if dtype == DType::Q6K {
                q6_k(bytes, &mut row);
            } else if dtype == DType::Iq4Xs {
                iq4_xs(bytes, &mut row);
            } else {
                unreachable!("{dtype} has no superblocks");
            }
            (self.d[lane], self.dmin[lane]) = (row.d, row.dmin);
            for i in 0..SUPERBLOCK / format.sub {
                (self.scale[i][lane], self.min[i][lane]) = (row.scale[i].into(), row.min[i].into());
            }
        }
    }

    /// 32-weight types: blocks of `B` bytes with float scales.
    #[inline(always)]
    fn legacy<const B: usize>(&mut self, format: Format, rows: &[&[u8]; LANES]) {
        for (lane, bytes) in rows.iter().enumerate() {
            let blocks = bytes.as_chunks::<B>().0;
            let codes = self.code[lane].as_chunks_mut::<BLOCK>().0;
            for (b, code) in codes.iter_mut().enumerate() {
                let Some(block) = blocks.get(b) else {
                    code.fill(0);
                    (self.scale[b][lane], self.min[b][lane]) = (0, 0);
                    continue;
                };
                self.scale[b][lane] = bits_at(block, 0);
                if format.has_min {
                    self.min[b][lane] = bits_at(block, 2);
                }
                if format.low == 8 {
                    // Flipping the highest bit adds the zero point.
                    put(code, numbers(block, 2).map(|q| q ^ (ONES * 128)));
                } else {
                    nibbles_of(block, format, code);
                }
            }
        }
    }

    /// MXFP4: blocks of 17 bytes with power-of-two scales. E2M1 values are doubled when unpacked, so
    /// scales are halved here.
    #[inline(always)]
    fn mxfp4(&mut self, format: Format, rows: &[&[u8]; LANES]) {
        for (lane, bytes) in rows.iter().enumerate() {
            let blocks = bytes.as_chunks::<17>().0;
            let codes = self.code[lane].as_chunks_mut::<BLOCK>().0;
            for (b, code) in codes.iter_mut().enumerate() {
                let Some(block) = blocks.get(b) else {
                    code.fill(0);
                    self.scale[b][lane] = 0;
                    continue;
                };
                nibbles_of(block, format, code);
                // bf16 of `2^(e - 128)`, subnormal for the two smallest exponents.
                self.scale[b][lane] = match block[0] {
                    e @ 2.. => u16::from(e - 1) << 7,
                    e => 0x20 << e,
                };
            }
        }
    }
}

/// One row's decoded superblock.
struct Row<'a> {
    code: &'a mut [u8; SUPERBLOCK],
    scale: [u8; 16],
    min: [u8; 16],
    d: u16,
    dmin: u16,
}

/// 1 in every byte of a u128. SIMD within a register: the compiler would otherwise gather bytes one
/// by one.
pub(crate) const ONES: u128 = u128::MAX / 255;

/// Loads 32 bytes as two u128.
#[inline(always)]
fn numbers(bytes: &[u8], at: usize) -> [u128; 2] {
    let part = bytes[at..at + 32].as_chunks::<16>().0;
    [u128::from_le_bytes(part[0]), u128::from_le_bytes(part[1])]
}

/// Stores two u128 as 32 codes.
#[inline(always)]
fn put(code: &mut [u8; 32], numbers: [u128; 2]) {
    code.as_chunks_mut::<16>().0.iter_mut().zip(numbers).for_each(|(c, n)| *c = n.to_le_bytes());
}

/// 4-bit codes, and the fifth bits of 5-bit types.
#[inline(always)]
fn nibbles_of<const B: usize>(block: &[u8; B], format: Format, code: &mut [u8; 32]) {
    let Some(stored) = block.last_chunk::<16>() else { return };
    let stored = u128::from_le_bytes(*stored);
    put(code, [stored, stored >> 4].map(|q| q & (ONES * 15)));
    if format.high == 1 {
        let at = if format.has_min { 4 } else { 2 };
        let Some(&bits) = block[at..].first_chunk::<4>() else { return };
        let bits = u32::from_le_bytes(bits);
        code.iter_mut().enumerate().for_each(|(j, c)| *c |= ((bits >> j & 1) << 4) as u8);
    }
}

/// Q2_K: 2-bit codes, 4-bit scales and mins per 16 weights. `dmin` changes sign, because mins are
/// subtracted there.
#[inline(always)]
fn q2_k(b: &[u8], row: &mut Row<'_>) {
    for (i, &s) in b.iter().enumerate().take(16) {
        (row.scale[i], row.min[i]) = (s & 15, s >> 4);
    }
    for (part, code) in row.code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let from = numbers(b, 16 + part / 4 * 32);
        put(code, from.map(|q| q >> (part % 4 * 2) & (ONES * 3)));
    }
    (row.d, row.dmin) = (bits_at(b, 80), bits_at(b, 82) ^ SIGN);
}

/// Q3_K: 2 low bits and 1 high bit; 6-bit scales per 16 weights.
#[inline(always)]
fn q3_k(b: &[u8], row: &mut Row<'_>) {
    for (i, scale) in row.scale.iter_mut().enumerate() {
        *scale = q3_k_scale(i, &b[96..108]) as u8;
    }
    for (part, code) in row.code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (low, high) = (numbers(b, 32 + part / 4 * 32), numbers(b, 0));
        put(code, [0, 1].map(|i| low[i] >> (part % 4 * 2) & (ONES * 3) | (high[i] >> part & ONES) << 2));
    }
    row.d = bits_at(b, 108);
}

/// Q4_K and Q5_K: nibbles, for Q5_K with `high` fifth bits; 6-bit scales and mins per 32 weights.
#[inline(always)]
fn q45_k(b: &[u8], nibbles: usize, high: Option<&[u8]>, row: &mut Row<'_>) {
    for i in 0..8 {
        let (scale, min) = q45_k_scale_min(i, &b[4..16]);
        (row.scale[i], row.min[i]) = (scale, min);
    }
    for (part, code) in row.code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let mut codes = numbers(b, nibbles + part / 2 * 32).map(|q| q >> (part % 2 * 4) & (ONES * 15));
        if let Some(high) = high {
            codes.iter_mut().zip(numbers(high, 0)).for_each(|(c, h)| *c |= (h >> part & ONES) << 4);
        }
        put(code, codes);
    }
    (row.d, row.dmin) = (bits_at(b, 0), bits_at(b, 2) ^ SIGN);
}

/// Q6_K: 4 low bits and 2 high bits; int8 scales per 16 weights.
#[inline(always)]
fn q6_k(b: &[u8], row: &mut Row<'_>) {
    for (part, code) in row.code.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, quarter) = (part / 4, part % 4);
        let (low, high) = (numbers(b, half * 64 + quarter % 2 * 32), numbers(b, 128 + half * 32));
        let low = low.map(|q| q >> (quarter / 2 * 4) & (ONES * 15));
        let high = high.map(|h| (h >> (quarter * 2) & (ONES * 3)) << 4);
        put(code, [0, 1].map(|i| low[i] | high[i]));
    }
    row.scale.copy_from_slice(&b[192..208]);
    row.d = bits_at(b, 208);
}

/// IQ4_XS: 4-bit table codes; 6-bit scales per 32 weights.
#[inline(always)]
fn iq4_xs(b: &[u8], row: &mut Row<'_>) {
    let Some(block) = b.first_chunk() else { return };
    let stored = block[8..].as_chunks::<16>().0;
    for (i, (code, stored)) in row.code.as_chunks_mut::<32>().0.iter_mut().zip(stored).enumerate() {
        row.scale[i] = iq4_xs_scale(i, block) as u8;
        let stored = u128::from_le_bytes(*stored);
        put(code, [stored, stored >> 4].map(|q| q & (ONES * 15)));
    }
    row.d = bits_at(b, 0);
}

/// Sign bit of a 16-bit float.
const SIGN: u16 = 0x8000;

/// A little-endian u16.
#[inline(always)]
fn bits_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
