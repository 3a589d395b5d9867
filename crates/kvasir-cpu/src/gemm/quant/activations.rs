//! Quantized activations: the operand of the integer GEMM and GEMV, 16-bit codes.
//!
//! Symmetric quantization with one f32 scale per row and block of 32 inputs. A scale depends
//! on one block of one row only, so a row's codes do not depend on the batch.
//!
//! Per tile (16 rows) and block: 16 x 64 bytes of codes, and a `ActivationScale` for each row.

use crate::gemm::quant::quantize::{ActivationScale, Codes, quantize};
use crate::isa::features::Isa;
use crate::isa::tile::TILE;
use crate::memory::buffer::Buffer;
use crate::weights::quant::format::BLOCK;
use std::io;

/// Rows of quantized activations; the module documentation has the layout.
pub(crate) struct QuantActivations {
    pub(crate) blocks: usize,
    tiles: usize,
    codes: Buffer,
    scales: Buffer,
}

impl QuantActivations {
    /// Allocates `rows` rows of `inputs` numbers.
    pub(crate) fn new(rows: usize, inputs: usize) -> io::Result<Self> {
        let (tiles, blocks) = (rows.div_ceil(TILE), inputs.div_ceil(BLOCK));
        let codes = Buffer::in_huge_pages(tiles * blocks * TILE * size_of::<Codes>())?;
        let scales = Buffer::in_huge_pages(tiles * blocks * TILE * size_of::<ActivationScale>())?;
        Ok(Self { blocks, tiles, codes, scales })
    }

    /// Reinterprets the same memory as at least `rows` rows of `inputs` numbers. Panics if they do
    /// not fit.
    pub(crate) fn reshape(&mut self, inputs: usize, rows: usize) {
        self.blocks = inputs.div_ceil(BLOCK);
        self.tiles = self.codes.len() / (TILE * size_of::<Codes>()) / self.blocks.max(1);
        assert!(self.takes(rows), "rows fit");
    }

    /// Whether `rows` rows fit.
    pub(crate) fn takes(&self, rows: usize) -> bool {
        rows <= self.tiles * TILE
    }

    /// Index of a row's block in the buffers. The rows of a tile are contiguous.
    fn at(&self, row: usize, block: usize) -> usize {
        debug_assert!(row < self.tiles * TILE && block < self.blocks);
        (row / TILE * self.blocks + block) * TILE + row % TILE
    }

    /// The codes of a row's block, two per word; the next rows of the tile follow.
    #[inline(always)]
    pub(crate) fn codes(&self, row: usize, block: usize) -> *const [i32; BLOCK / 2] {
        self.codes.ptr().cast::<[i32; BLOCK / 2]>().wrapping_add(self.at(row, block))
    }

    /// Scale and sums of a row's block; the next rows of the tile follow.
    #[inline(always)]
    pub(crate) fn scales(&self, row: usize, block: usize) -> *const ActivationScale {
        self.scales.ptr().cast::<ActivationScale>().wrapping_add(self.at(row, block))
    }

    /// Quantizes `x` into row `row`, from block `first` on. The last block is padded with zeros.
    ///
    /// # Safety
    /// No other thread may access these blocks concurrently. `takes(row + 1)` must hold, and the
    /// blocks must exist.
    pub(crate) unsafe fn write(&self, isa: Isa, row: usize, first: usize, x: &[f32]) {
        let (whole, rest) = x.as_chunks::<BLOCK>();
        let mut last = [0f32; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        let blocks = whole.iter().chain((!rest.is_empty()).then_some(&last));
        for (block, x) in blocks.enumerate() {
            // SAFETY: the block belongs to this row alone and lies within the buffers.
            unsafe {
                let codes = self.codes(row, first + block).cast_mut().cast::<Codes>();
                quantize(isa, x, &mut *codes, &mut *self.scales(row, first + block).cast_mut());
            }
        }
    }
}
