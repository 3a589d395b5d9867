//! Int8 activations: the quantized operand of the integer GEMM and GEMV, in AMX tile layout.
//!
//! Symmetric quantization with one f32 scale per row and superblock of 256 inputs. The rule looks
//! at one superblock of one row only, so a row's codes do not depend on the batch. Negated sums of
//! codes are stored with them: they replace the products with mins and undo the `zero_point` of
//! unsigned weights.
//!
//! Per tile (16 rows) and superblock:
//!
//! - 4 KiB of codes: four steps of 64 inputs, 16 rows x 64 bytes each;
//! - 16 scales, and `Sums` for each row;
//! - one bf16 tile with the sums of 16 inputs, each as two exact parts, for AMX;
//! - `Words` (16-bit codes), for the first `FEW` rows of the batch only.

use crate::gemm::int8::quantize::{Destinations, FEW, Sums, Words, quantize};
use crate::isa::features::Isa;
use crate::isa::tile::TILE;
use crate::memory::buffer::Buffer;
use crate::weights::int8::format::SUPERBLOCK;
use std::io;

/// Rows of int8 activations; the module documentation has the layout.
pub(crate) struct QuantActivations {
    pub(crate) superblocks: usize,
    tiles: usize,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
    parts: Buffer,
    words: Buffer,
}

impl QuantActivations {
    /// Allocates `rows` rows of `inputs` numbers.
    pub(crate) fn new(rows: usize, inputs: usize) -> io::Result<Self> {
        let (tiles, superblocks) = (rows.div_ceil(TILE).next_multiple_of(2), inputs.div_ceil(SUPERBLOCK));
        let n = tiles * superblocks;
        Ok(Self {
            superblocks,
            tiles,
            codes: Buffer::in_huge_pages(n * 4096)?,
            scales: Buffer::in_huge_pages(n * 64)?,
            sums: Buffer::in_huge_pages(n * TILE * size_of::<Sums>())?,
            parts: Buffer::in_huge_pages(n * 1024)?,
            // There are at least two tiles, so this bounds the superblocks of a row whatever
            // `reshape` makes of them.
            words: Buffer::in_huge_pages(n / 2 * size_of::<[Words; FEW]>())?,
        })
    }

    /// Reinterprets the same memory as at least `rows` rows of `inputs` numbers. Panics if they do
    /// not fit.
    pub(crate) fn reshape(&mut self, inputs: usize, rows: usize) {
        let superblocks = inputs.div_ceil(SUPERBLOCK);
        self.tiles = (self.codes.len() / 4096 / superblocks.max(1)) & !1;
        self.superblocks = superblocks;
        assert!(self.takes(rows), "rows fit");
    }

    /// Whether `rows` rows fit.
    pub(crate) fn takes(&self, rows: usize) -> bool {
        rows <= self.tiles * TILE
    }

    /// Index of a tile's superblock in the buffers.
    fn at(&self, tile: usize, s: usize) -> usize {
        debug_assert!(tile < self.tiles && s < self.superblocks);
        tile * self.superblocks + s
    }

    /// Four tiles of int8 codes.
    pub(crate) fn codes(&self, tile: usize, s: usize) -> *const i8 {
        self.codes.ptr().wrapping_add(self.at(tile, s) * 4096).cast()
    }

    /// 16 scales, one per row of the tile.
    pub(crate) fn scales(&self, tile: usize, s: usize) -> *const f32 {
        self.scales.ptr().wrapping_add(self.at(tile, s) * 64).cast()
    }

    /// The sums of the tile's 16 rows.
    pub(crate) fn sums(&self, tile: usize, s: usize) -> *const Sums {
        self.sums.ptr().cast::<Sums>().wrapping_add(self.at(tile, s) * TILE)
    }

    /// One bf16 tile of sums: 16 rows x 32 numbers.
    pub(crate) fn parts(&self, tile: usize, s: usize) -> *const u8 {
        self.parts.ptr().wrapping_add(self.at(tile, s) * 1024)
    }

    /// The 16-bit codes of one of the first [`FEW`] rows; the following rows are contiguous.
    pub(crate) fn words(&self, row: usize, s: usize) -> *const Words {
        debug_assert!(row < FEW && s < self.superblocks);
        self.words.ptr().cast::<Words>().wrapping_add(s * FEW + row)
    }

    /// Quantizes `x` into row `row`.
    ///
    /// # Safety
    /// No other thread may access the same row concurrently, and `takes(row + 1)` must hold.
    pub(crate) unsafe fn write_row(&self, isa: Isa, row: usize, x: &[f32]) {
        let (whole, rest) = x.as_chunks::<SUPERBLOCK>();
        let mut last = [0f32; SUPERBLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let parts = whole.iter().chain((!rest.is_empty()).then_some(&last));
        for (s, part) in parts.enumerate().take(self.superblocks) {
            // SAFETY: upheld by the caller.
            unsafe { self.write_superblock(isa, row, s, part) };
        }
    }

    /// Quantizes superblock `s` of row `row`.
    ///
    /// # Safety
    /// As for [`write_row`](Self::write_row), for this superblock.
    pub(crate) unsafe fn write_superblock(&self, isa: Isa, row: usize, s: usize, x: &[f32; SUPERBLOCK]) {
        let (tile, r) = (row / TILE, row % TILE);
        // SAFETY: the destinations belong to this row alone and lie within the buffers.
        unsafe {
            let to = Destinations {
                codes: self.codes(tile, s).add(r * 64).cast_mut(),
                scale: self.scales(tile, s).add(r).cast_mut(),
                sums: self.sums(tile, s).add(r).cast_mut(),
                parts: self.parts(tile, s).add(r * 64).cast_mut().cast(),
                words: (row < FEW).then(|| self.words(row, s).cast_mut()),
            };
            quantize(isa, x, &to);
        }
    }
}
