use super::format::{Format, SUPER};
use super::quantise::{Places, quantise};
use crate::Level;
use crate::buffer::Buffer;
use crate::tile::TILE;
use std::io;

/// Rows of activations as 8-bit integers, one scale per row and superblock, in tiles of 16 rows. The rule is fixed and looks at one row's
/// superblock alone, so a row's numbers do not depend on what else is in the batch.
///
/// Per tile and superblock: four kilobytes of integers (four steps of 64 inputs, 16 rows × 64 bytes each), 16 scales, each row's
/// [sums](Sums), and a bf16 tile whose rows hold those of 16 inputs as two exact parts. The first rows also lie in [words](Words).
pub(crate) struct QuantActivations {
    pub(crate) supers: usize,
    tiles: usize,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
    parts: Buffer,
    words: Buffer,
}

/// A row's superblock as kernels of few rows want it for weights of 16 bits: of each four integers the first and the third, then those between.
pub(super) type Words = [[[i16; 2]; SUPER / 4]; 2];

/// Rows that can be few: more are multiplied otherwise.
pub(super) const FEW: usize = 4;

/// The negated sums of a row's superblock of integers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Sums {
    /// Of 16 inputs each.
    pub(super) of_16: [i16; SUPER / 16],
    /// Of 32 inputs each.
    pub(super) of_32: [i16; SUPER / 32],
    /// Of all inputs, 128 times: what weights that are [lifted](Format::lift) by so much must lose again.
    pub(super) lifted: i32,
}

impl Sums {
    /// Those of the format's sub-blocks.
    #[inline(always)]
    pub(super) fn of_subs(&self, f: Format) -> &[i16] {
        if f.sub == 32 { &self.of_32 } else { &self.of_16 }
    }

    /// Those of two neighbouring sub-blocks in one word, the first in the low half.
    #[inline(always)]
    pub(super) fn pair(&self, f: Format, two: usize) -> i32 {
        let sums = self.of_subs(f);
        i32::from(sums[2 * two] as u16) | i32::from(sums[2 * two + 1]) << 16
    }
}

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
            sums: Buffer::in_large_pages(n * TILE * size_of::<Sums>())?,
            parts: Buffer::in_large_pages(n * 1024)?,
            // Rows are at least two tiles, so this many superblocks at most however they are reshaped.
            words: Buffer::in_large_pages(n / 2 * size_of::<[Words; FEW]>())?,
        })
    }

    /// The same room for so many rows of another length, which must fit.
    pub(crate) fn reshape(&mut self, inputs: usize, rows: usize) {
        let supers = inputs.div_ceil(SUPER);
        self.tiles = (self.codes.len() / 4096 / supers.max(1)) & !1;
        self.supers = supers;
        assert!(self.takes(rows), "rows fit");
    }

    /// Whether there is room for so many rows.
    pub(crate) fn takes(&self, rows: usize) -> bool {
        rows <= self.tiles * TILE
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

    /// Those of 16 rows.
    pub(crate) fn sums(&self, tile: usize, s: usize) -> *const Sums {
        self.sums.ptr().cast::<Sums>().wrapping_add(self.at(tile, s) * TILE)
    }

    /// One tile: 16 rows of 32 bf16.
    pub(crate) fn parts(&self, tile: usize, s: usize) -> *const u8 {
        self.parts.ptr().wrapping_add(self.at(tile, s) * 1024)
    }

    /// One of the first rows'; those of the rows after it follow.
    pub(super) fn words(&self, row: usize, s: usize) -> *const Words {
        debug_assert!(row < FEW && s < self.supers);
        self.words.ptr().cast::<Words>().wrapping_add(s * FEW + row)
    }

    /// Writes row `row` from `x`.
    ///
    /// # Safety
    /// No other thread may use the same row meanwhile, and there must be room for it.
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
                sums: self.sums(tile, s).add(r).cast_mut(),
                parts: self.parts(tile, s).add(r * 64).cast_mut().cast(),
                words: (row < FEW).then(|| self.words(row, s).cast_mut()),
            };
            quantise(level, x, &places);
        }
    }
}
