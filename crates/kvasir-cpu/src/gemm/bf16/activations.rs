//! Activations in AMX tile layout: the A operand of the bf16 GEMM.
//!
//! Each f32 activation is stored as one bf16, or as a sum of two bf16 (`Bf16Terms::Two`) for nearly
//! f32 precision at twice the multiply-adds. Without bf16 dot products, weights are widened
//! to f32 and activations stay f32 (`Bf16Terms::Whole`). Rows are written independently,
//! so the values of a row do not depend on the batch.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::float16::{bf16, round_bf16, round_to_bf16};
use crate::isa::tile::{STEP, TILE};
use crate::memory::buffer::Buffer;
use crate::weights::precision::Precision;
use std::io;

/// Activations in tiles of 16 rows x 32 inputs, the steps of a tile row one after the other.
pub(crate) struct Bf16Activations {
    pub(crate) terms: Bf16Terms,
    /// Tiles along the K dimension; twice as many with `Bf16Terms::Two`.
    pub(crate) steps: usize,
    tiles: usize,
    bytes: Buffer,
}

/// How bf16 terms represent one f32 activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bf16Terms {
    /// One: the nearest bf16.
    One,
    /// Two: the nearest bf16 and the bf16 nearest to the remainder, at least 16 significant bits in
    /// all. The tile of remainders follows the tile of leading terms.
    Two,
    /// No bf16: the f32 itself.
    Whole,
}

impl Bf16Terms {
    /// The terms of activations that meet bf16 weights.
    pub(crate) fn of(isa: Isa, precision: Precision) -> Self {
        match precision {
            _ if !isa.has_bf16_dot() => Self::Whole,
            Precision::Bf16x2 => Self::Two,
            Precision::Auto | Precision::F32 => Self::One,
        }
    }

    /// Tiles of activations per tile of weights.
    pub(crate) fn tiles(self) -> usize {
        if self == Self::Two { 2 } else { 1 }
    }

    /// Bytes of a tile.
    fn tile_bytes(self) -> usize {
        if self == Self::Whole { TILE * STEP * 4 } else { TILE * STEP * 2 }
    }
}

impl Bf16Activations {
    /// Allocates `rows` rows of `inputs` numbers.
    pub(crate) fn new(rows: usize, inputs: usize, terms: Bf16Terms) -> io::Result<Self> {
        let (tiles, steps) = (rows.div_ceil(TILE).next_multiple_of(2), inputs.div_ceil(STEP) * terms.tiles());
        Ok(Self { terms, steps, tiles, bytes: Buffer::in_huge_pages(tiles * steps * terms.tile_bytes())? })
    }

    /// Reinterprets the same memory as at least `rows` rows of `inputs` numbers. Panics if they do
    /// not fit.
    pub(crate) fn reshape(&mut self, inputs: usize, rows: usize) {
        self.steps = inputs.div_ceil(STEP) * self.terms.tiles();
        self.tiles = (self.bytes.len() / self.terms.tile_bytes() / self.steps.max(1)) & !1;
        assert!(self.takes(rows), "rows fit");
    }

    /// Whether `rows` rows fit.
    pub(crate) fn takes(&self, rows: usize) -> bool {
        rows <= self.tiles * TILE
    }

    /// Address of step `step` of row tile `tile`.
    pub(crate) fn tile(&self, tile: usize, step: usize) -> *const u8 {
        debug_assert!(tile < self.tiles && step < self.steps);
        self.bytes.ptr().wrapping_add((tile * self.steps + step) * self.terms.tile_bytes())
    }

    /// Address of step `step` of row `row`.
    pub(crate) fn row(&self, row: usize, step: usize) -> *const u8 {
        self.tile(row / TILE, step).wrapping_add(row % TILE * self.terms.tile_bytes() / TILE)
    }

    /// Converts `x` into row `row`.
    ///
    /// # Safety
    /// No other thread may access the same row concurrently, and `takes(row + 1)` must hold.
    pub(crate) unsafe fn write_row(&self, isa: Isa, row: usize, x: &[f32]) {
        for (n, numbers) in x.chunks(STEP).enumerate() {
            let place = |term| self.row(row, n * self.terms.tiles() + term).cast_mut();
            let mut bits = [[0u16; STEP]; 2];
            match self.terms {
                Bf16Terms::One => round_to_bf16(isa, numbers, &mut bits[0]),
                Bf16Terms::Two => split(isa, numbers, &mut bits),
                Bf16Terms::Whole => {
                    let mut whole = [0f32; STEP];
                    whole[..numbers.len()].copy_from_slice(numbers);
                    // SAFETY: 128 bytes that belong to this row alone.
                    unsafe { place(0).cast::<[f32; STEP]>().write_unaligned(whole) };
                    continue;
                }
            }
            for (term, bits) in bits.iter().enumerate().take(self.terms.tiles()) {
                // SAFETY: 64 bytes that belong to this row alone.
                unsafe { place(term).cast::<[u16; STEP]>().write_unaligned(*bits) };
            }
        }
    }

    /// Byte offset within a panel of the weight tile that activation tile `step` multiplies.
    #[inline(always)]
    pub(crate) fn weights_of(&self, step: usize) -> usize {
        step / self.terms.tiles() * 1024
    }
}

#[inline(always)]
fn split_body(x: &[f32], [upper, lower]: &mut [[u16; STEP]; 2]) {
    for ((upper, lower), &v) in upper.iter_mut().zip(lower).zip(x) {
        *upper = round_bf16(v);
        *lower = round_bf16(v - bf16(*upper));
    }
}

per_isa! {
    /// Splits each f32 into two bf16 whose sum approximates it.
    split(x: &[f32], parts: &mut [[u16; STEP]; 2]) => split_body
}
