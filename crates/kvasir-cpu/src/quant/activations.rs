use super::format::SUPER;
use crate::Level;
use crate::buffer::Buffer;
use crate::level::per_level;
use std::io;

/// Tokens of a tile.
pub(crate) const TILE: usize = 16;

/// Rows of activations as 8-bit integers, one scale per row and superblock, in tiles of 16 rows. The rule is fixed and looks at one row's
/// superblock alone, so a row's numbers do not depend on what else is in the batch.
///
/// Per tile and superblock: four kilobytes of integers (four steps of 64 inputs, 16 rows × 64 bytes each), 16 scales, the negated
/// sums of sub-blocks (16 of 16 inputs, then 8 of 32 inputs, per row), and a bf16 tile whose rows hold the former as two exact parts.
pub(crate) struct QuantActivations {
    pub(crate) supers: usize,
    tiles: usize,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
    parts: Buffer,
}

/// Numbers per row and superblock in `sums`.
pub(crate) const SUMS: usize = 24;

impl QuantActivations {
    /// Room for `rows` rows of `inputs` numbers.
    pub(crate) fn new(rows: usize, inputs: usize) -> io::Result<Self> {
        let (tiles, supers) = (rows.div_ceil(TILE).next_multiple_of(2), inputs.div_ceil(SUPER));
        let n = tiles * supers;
        Ok(Self {
            supers,
            tiles,
            codes: Buffer::in_large_pages(n * 4096)?,
            scales: Buffer::in_large_pages(n * 64)?,
            sums: Buffer::in_large_pages(n * TILE * SUMS * 4)?,
            parts: Buffer::in_large_pages(n * 1024)?,
        })
    }

    /// The same room for rows of another length, if they fit.
    pub(crate) fn reshape(&mut self, inputs: usize) {
        let supers = inputs.div_ceil(SUPER);
        self.tiles = (self.codes.len() / 4096 / supers.max(1)) & !1;
        self.supers = supers;
    }

    fn at(&self, tile: usize, s: usize) -> usize {
        debug_assert!(tile < self.tiles && s < self.supers);
        tile * self.supers + s
    }

    /// Four tiles of integers.
    pub(crate) fn codes(&self, tile: usize, s: usize) -> *const i8 {
        self.codes.ptr().wrapping_add(self.at(tile, s) * 4096).cast()
    }

    /// 16 scales.
    pub(crate) fn scales(&self, tile: usize, s: usize) -> *const f32 {
        self.scales.ptr().wrapping_add(self.at(tile, s) * 64).cast()
    }

    /// Negated sums of row `r` of the tile.
    pub(crate) fn sums(&self, tile: usize, s: usize, r: usize) -> *const i32 {
        self.sums.ptr().wrapping_add((self.at(tile, s) * TILE + r) * SUMS * 4).cast()
    }

    /// One tile: 16 rows of 32 bf16.
    pub(crate) fn parts(&self, tile: usize, s: usize) -> *const u8 {
        self.parts.ptr().wrapping_add(self.at(tile, s) * 1024)
    }

    /// Writes row `row` from `x`.
    ///
    /// # Safety
    /// No other thread may use the same row meanwhile, and `row` must be below [`rows`](Self::rows).
    pub(crate) unsafe fn write_row(&self, level: Level, row: usize, x: &[f32]) {
        let (tile, r) = (row / TILE, row % TILE);
        for (s, part) in x.chunks(SUPER).enumerate().take(self.supers) {
            let mut full = [0f32; SUPER];
            full[..part.len()].copy_from_slice(part);
            let mut made = Made { codes: [0; SUPER], scale: 0.0, sums: [0; SUMS], parts: [0; 32] };
            quantise(level, &full, &mut made);
            let Made { codes, scale, sums, parts } = made;
            // SAFETY: the places belong to this row alone and lie within the buffers.
            unsafe {
                for (step, codes) in codes.as_chunks::<64>().0.iter().enumerate() {
                    let to = self.codes(tile, s).add(step * 1024 + r * 64).cast_mut();
                    to.cast::<[i8; 64]>().write(*codes);
                }
                self.scales(tile, s).add(r).cast_mut().write(scale);
                self.sums(tile, s, r).cast_mut().cast::<[i32; SUMS]>().write(sums);
                self.parts(tile, s).add(r * 64).cast_mut().cast::<[u16; 32]>().write(parts);
            }
        }
    }
}

/// One superblock of one row.
pub(crate) struct Made {
    codes: [i8; SUPER],
    scale: f32,
    sums: [i32; SUMS],
    parts: [u16; 32],
}

/// Integers in -127..=127 and their scale. Ties round to even.
#[inline(always)]
fn quantise_body(x: &[f32; SUPER], made: &mut Made) {
    let mut lanes = [0f32; 16];
    for chunk in x.as_chunks::<16>().0 {
        for (a, v) in lanes.iter_mut().zip(chunk) {
            *a = if v.abs() > *a { v.abs() } else { *a };
        }
    }
    let largest = lanes.iter().fold(0f32, |a, &v| if v > a { v } else { a });
    let scale = largest / 127.0;
    let inverse = if scale.is_normal() { 1.0 / scale } else { 0.0 };
    // Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    for (c, v) in made.codes.iter_mut().zip(x) {
        *c = (v * inverse + ROUND).to_bits() as u8 as i8;
    }
    made.scale = if inverse == 0.0 { 0.0 } else { scale };
    for (i, sub) in made.codes.as_chunks::<16>().0.iter().enumerate() {
        let sum = -sub.iter().map(|&c| i32::from(c)).sum::<i32>();
        made.sums[i] = sum;
        made.sums[16 + i / 2] += sum;
        // Both parts have at most eight significant bits, so bf16 holds them exactly.
        made.parts[i] = ((sum & !15) as f32).to_bits().wrapping_shr(16) as u16;
        made.parts[16 + i] = ((sum & 15) as f32).to_bits().wrapping_shr(16) as u16;
    }
}

per_level! {
    /// Makes a superblock's integers.
    quantise(x: &[f32; SUPER], made: &mut Made) => quantise_body
}
