//! Tiles of bf16 multiplied with vectors of f32, in the tile unit's order: per tile of 32 inputs one chain of fused multiply-adds over the even
//! inputs and one over the odd, the two added, that added to the sum. Numbers are widened once and multiplied often.

use crate::Level;
use crate::dense::STEP;
use crate::level::per_level;
use crate::quant::{LANES, TILE};

/// 16 rows of 32 inputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Rows([[f32; STEP]; TILE]);

/// 32 inputs of 16 columns: the even ones, then the odd ones.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Columns([[[f32; LANES]; TILE]; 2]);

/// The sums of 16 rows and 16 columns.
pub(crate) type Sums = [[f32; LANES]; TILE];

impl Rows {
    pub(crate) const NONE: Self = Self([[0.0; STEP]; TILE]);

    /// Widens rows that lie `stride` bytes apart.
    ///
    /// # Safety
    /// There must be 16 rows of 64 bytes.
    pub(crate) unsafe fn open(&mut self, level: Level, base: *const u8, stride: usize) {
        open_rows(level, &mut self.0, base, stride);
    }
}

impl Columns {
    pub(crate) const NONE: Self = Self([[[0.0; LANES]; TILE]; 2]);

    /// A column's even or odd input of a pair.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn number(&self, odd: usize, pair: usize, column: usize) -> f32 {
        self.0[odd][pair][column]
    }

    /// Widens a tile of pairs of inputs.
    ///
    /// # Safety
    /// There must be 1024 bytes.
    pub(crate) unsafe fn open(&mut self, level: Level, tile: *const u8) {
        #[cfg(target_arch = "x86_64")]
        if level >= Level::Avx512Vnni {
            // SAFETY: the level was found on this machine; the caller's tile.
            return unsafe { wide::open(self, tile) };
        }
        open_columns(level, &mut self.0, tile);
    }
}

/// Adds the products of 16 rows and 16 columns to their sums.
pub(crate) fn multiply(level: Level, rows: &Rows, columns: &Columns, sums: &mut Sums) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512Vnni {
        // SAFETY: the level was found on this machine.
        return unsafe { wide::multiply(rows, columns, sums) };
    }
    multiply_by_compiler(level, rows, columns, sums);
}

#[inline(always)]
fn open_rows_body(rows: &mut [[f32; STEP]; TILE], base: *const u8, stride: usize) {
    for (n, row) in rows.iter_mut().enumerate() {
        // SAFETY: a row, as the caller of `open` says.
        let bits = unsafe { base.wrapping_add(n * stride).cast::<[u16; STEP]>().read_unaligned() };
        for (v, bits) in row.iter_mut().zip(bits) {
            *v = f32::from_bits(u32::from(bits) << 16);
        }
    }
}

per_level! { open_rows(rows: &mut [[f32; STEP]; TILE], base: *const u8, stride: usize) => open_rows_body }

#[inline(always)]
fn open_columns_body([even, odd]: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) {
    for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
        // SAFETY: a row of the tile, as the caller of `open` says.
        let pairs = unsafe { tile.wrapping_add(i * 64).cast::<[u32; LANES]>().read_unaligned() };
        for lane in 0..LANES {
            even[lane] = f32::from_bits(pairs[lane] << 16);
            odd[lane] = f32::from_bits(pairs[lane] & 0xffff_0000);
        }
    }
}

per_level! { open_columns(columns: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) => open_columns_body }

/// One chain for each of `N` rows and 16 columns.
#[inline(always)]
fn chains<const N: usize>(
    rows: &[[f32; STEP]; N],
    columns: &[[f32; LANES]; TILE],
    odd: usize,
) -> [[f32; LANES]; N] {
    let mut sums = [[0f32; LANES]; N];
    for (i, column) in columns.iter().enumerate() {
        for n in 0..N {
            let x = rows[n][2 * i + odd];
            for lane in 0..LANES {
                sums[n][lane] = column[lane].mul_add(x, sums[n][lane]);
            }
        }
    }
    sums
}

/// Rows whose sums, of 16 columns, fit 16 registers of 256 bits beside what is multiplied.
const AT_ONCE: usize = 4;

#[inline(always)]
fn multiply_body(rows: &Rows, columns: &Columns, sums: &mut Sums) {
    for (rows, sums) in rows.0.as_chunks::<AT_ONCE>().0.iter().zip(sums.as_chunks_mut::<AT_ONCE>().0) {
        let even = chains(rows, &columns.0[0], 0);
        let odd = chains(rows, &columns.0[1], 1);
        for n in 0..AT_ONCE {
            for lane in 0..LANES {
                sums[n][lane] += even[n][lane] + odd[n][lane];
            }
        }
    }
}

per_level! { multiply_by_compiler(rows: &Rows, columns: &Columns, sums: &mut Sums) => multiply_body }

/// The same in 512-bit vectors: compilers gather across the lanes instead of working along them.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{Columns, LANES, Rows, Sums, TILE};
    use std::arch::x86_64::*;

    /// [`Columns::open`].
    ///
    /// # Safety
    /// As there.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn open(columns: &mut Columns, tile: *const u8) {
        let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
        let [even, odd] = &mut columns.0;
        for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
            // SAFETY: a row of the caller's tile; rows of columns.
            unsafe {
                let pairs = _mm512_loadu_si512(tile.wrapping_add(i * 64).cast());
                _mm512_storeu_si512(even.as_mut_ptr().cast(), _mm512_slli_epi32::<16>(pairs));
                _mm512_storeu_si512(odd.as_mut_ptr().cast(), _mm512_and_si512(pairs, high));
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn chains(rows: &Rows, columns: &[[f32; LANES]; TILE], odd: usize) -> [__m512; TILE] {
        let mut sums = [_mm512_setzero_ps(); TILE];
        for (i, column) in columns.iter().enumerate() {
            // SAFETY: 16 floats.
            let w = unsafe { _mm512_loadu_ps(column.as_ptr()) };
            for n in 0..TILE {
                sums[n] = _mm512_fmadd_ps(w, _mm512_set1_ps(rows.0[n][2 * i + odd]), sums[n]);
            }
        }
        sums
    }

    /// [`super::multiply`], all rows at once.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn multiply(rows: &Rows, columns: &Columns, sums: &mut Sums) {
        let even = chains(rows, &columns.0[0], 0);
        let odd = chains(rows, &columns.0[1], 1);
        for n in 0..TILE {
            // SAFETY: 16 floats.
            unsafe {
                let sum = _mm512_loadu_ps(sums[n].as_ptr());
                let sum = _mm512_add_ps(sum, _mm512_add_ps(even[n], odd[n]));
                _mm512_storeu_ps(sums[n].as_mut_ptr(), sum);
            }
        }
    }
}
