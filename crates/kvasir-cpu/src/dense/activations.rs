//! Rows of activations as bf16.

use crate::Level;
use crate::buffer::Buffer;
use crate::halves::{bf16, round_bf16};
use crate::level::per_level;
use crate::tile::{STEP, TILE};
use std::io;

/// Rows of activations as bf16 in tiles of 16 rows × 32 inputs.
pub(crate) struct Bf16Activations {
    pub(super) taken: Taken,
    /// Tiles that rows are multiplied as, one after the other.
    pub(crate) steps: usize,
    tiles: usize,
    bytes: Buffer,
}

/// As how many bf16 a number is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The nearest one.
    Once,
    /// That, and the nearest one to what it leaves: 16 bits and more of the number. A tile of the first is followed by one of the second.
    Twice,
}

impl Bf16Activations {
    pub(crate) fn new(rows: usize, inputs: usize, taken: Taken) -> io::Result<Self> {
        let (tiles, steps) = (rows.div_ceil(TILE).next_multiple_of(2), inputs.div_ceil(STEP) << taken as u32);
        Ok(Self { taken, steps, tiles, bytes: Buffer::in_large_pages(tiles * steps * 1024)? })
    }

    /// The same room for so many rows of another length, which must fit.
    pub(crate) fn reshape(&mut self, inputs: usize, rows: usize) {
        self.steps = inputs.div_ceil(STEP) << self.taken as u32;
        self.tiles = (self.bytes.len() / 1024 / self.steps.max(1)) & !1;
        assert!(self.takes(rows), "rows fit");
    }

    /// Whether there is room for so many rows.
    pub(crate) fn takes(&self, rows: usize) -> bool {
        rows <= self.tiles * TILE
    }

    pub(crate) fn tile(&self, tile: usize, step: usize) -> *const u8 {
        debug_assert!(tile < self.tiles && step < self.steps);
        self.bytes.ptr().wrapping_add((tile * self.steps + step) * 1024)
    }

    /// Writes row `row` from `x`.
    ///
    /// # Safety
    /// No other thread may use the same row meanwhile, and there must be room for it.
    pub(crate) unsafe fn write_row(&self, level: Level, row: usize, x: &[f32]) {
        let place = |step| self.tile(row / TILE, step).wrapping_add(row % TILE * 64).cast_mut();
        for (n, numbers) in x.chunks(STEP).enumerate() {
            let mut bits = [[0u16; STEP]; 2];
            match self.taken {
                Taken::Once => narrow(level, numbers, &mut bits[0]),
                Taken::Twice => split(level, numbers, &mut bits),
            }
            for (part, bits) in bits.iter().enumerate().take(1 << self.taken as u32) {
                // SAFETY: 64 bytes of this row.
                unsafe {
                    place((n << self.taken as u32) + part).cast::<[u16; STEP]>().write_unaligned(*bits)
                };
            }
        }
    }

    /// Where in a panel the weights lie that a step is multiplied with.
    #[inline(always)]
    pub(crate) fn weights_of(&self, step: usize) -> usize {
        (step >> self.taken as u32) * 1024
    }
}

#[inline(always)]
fn narrow_body(x: &[f32], bits: &mut [u16]) {
    bits.iter_mut().zip(x).for_each(|(b, &v)| *b = round_bf16(v));
}

per_level! {
    /// Rounds to bf16.
    narrow(x: &[f32], bits: &mut [u16]) => narrow_body
}

#[inline(always)]
fn split_body(x: &[f32], [upper, lower]: &mut [[u16; STEP]; 2]) {
    for ((upper, lower), &v) in upper.iter_mut().zip(lower).zip(x) {
        *upper = round_bf16(v);
        *lower = round_bf16(v - bf16(*upper));
    }
}

per_level! {
    /// Numbers as sums of two bf16.
    split(x: &[f32], parts: &mut [[u16; STEP]; 2]) => split_body
}
