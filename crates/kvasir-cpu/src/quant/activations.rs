use super::format::SUPER;
use super::quantise::{Places, quantise};
use crate::Level;
use crate::buffer::Buffer;
use std::io;

/// Tokens of a tile.
pub(crate) const TILE: usize = 16;

/// Rows of activations as 8-bit integers, one scale per row and superblock, in tiles of 16 rows. The rule is fixed and looks at one row's
/// superblock alone, so a row's numbers do not depend on what else is in the batch.
///
/// Per tile and superblock: four kilobytes of integers (four steps of 64 inputs, 16 rows × 64 bytes each), 16 scales, the negated
/// sums of sub-blocks (per row 16 of 16 inputs, 8 of 32 inputs, and that of all), and a bf16 tile whose rows hold the first as two exact parts.
pub(crate) struct QuantActivations {
    pub(crate) supers: usize,
    tiles: usize,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
    parts: Buffer,
}

/// Numbers per row and superblock in `sums`, of which some are not used.
pub(crate) const SUMS: usize = 32;
/// Where the negated sum of all a superblock's integers is.
pub(crate) const TOTAL: usize = 24;

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
        let (whole, rest) = x.as_chunks::<SUPER>();
        let mut last = [0f32; SUPER];
        last[..rest.len()].copy_from_slice(rest);
        let parts = whole.iter().chain((!rest.is_empty()).then_some(&last));
        for (s, part) in parts.enumerate().take(self.supers) {
            // SAFETY: as the caller vouches.
            unsafe { self.write_super(level, row, s, part) };
        }
    }

    /// Writes superblock `s` of row `row`.
    ///
    /// # Safety
    /// As for [`write_row`](Self::write_row), for this superblock.
    pub(super) unsafe fn write_super(&self, level: Level, row: usize, s: usize, x: &[f32; SUPER]) {
        let (tile, r) = (row / TILE, row % TILE);
        // SAFETY: the places belong to this row alone and lie within the buffers.
        unsafe {
            let places = Places {
                codes: self.codes(tile, s).add(r * 64).cast_mut(),
                scale: self.scales(tile, s).add(r).cast_mut(),
                sums: self.sums(tile, s, r).cast_mut(),
                parts: self.parts(tile, s).add(r * 64).cast_mut().cast(),
            };
            quantise(level, x, &places);
        }
    }
}
