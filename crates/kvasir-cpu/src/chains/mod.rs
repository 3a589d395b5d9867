//! Tiles of bf16 multiplied with vectors of f32, in the tile unit's order: per tile of 32 inputs one chain of fused multiply-adds over the even
//! inputs and one over the odd, the two added, that added to the sum. Numbers are widened once and multiplied often.

#[cfg(target_arch = "x86_64")]
mod dots;
#[cfg(target_arch = "x86_64")]
mod wide;

#[cfg(target_arch = "x86_64")]
pub(crate) use dots::add_pairs;

use crate::Level;
use crate::halves::bf16;
use crate::level::per_level;
use crate::tile::{LANES, STEP, TILE};

/// 16 rows of 32 inputs, in the form that the level multiplies.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Rows([[f32; STEP]; TILE]);

/// 32 inputs of 16 columns, in the form that the level multiplies: the even ones, then the odd ones.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Columns([[[f32; LANES]; TILE]; 2]);

/// The sums of 16 rows and 16 columns.
pub(crate) type Sums = [[f32; LANES]; TILE];

impl Rows {
    pub(crate) const NONE: Self = Self([[0.0; STEP]; TILE]);

    /// Takes rows that lie `stride` bytes apart.
    ///
    /// # Safety
    /// There must be 16 rows of 64 bytes.
    pub(crate) unsafe fn open(&mut self, level: Level, base: *const u8, stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Avx512Bf16 {
            // SAFETY: the level was found on this machine; the caller's rows.
            return unsafe { dots::open_rows(self, base, stride) };
        }
        // SAFETY: the caller's rows.
        unsafe { open_rows(level, &mut self.0, base, stride) };
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

    /// Takes a tile of pairs of inputs.
    ///
    /// # Safety
    /// There must be 1024 bytes.
    pub(crate) unsafe fn open(&mut self, level: Level, tile: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was found on this machine; the caller's tile.
        unsafe {
            match level {
                Level::Avx512Bf16 => return dots::open_columns(self, tile),
                Level::Avx512Vnni | Level::Amx => return wide::open(self, tile),
                _ => {}
            }
        }
        // SAFETY: the caller's tile.
        unsafe { open_columns(level, &mut self.0, tile) };
    }
}

/// Adds the products of 16 rows, or the first eight, and 16 columns to their sums.
pub(crate) fn multiply(level: Level, rows: &Rows, columns: &Columns, sums: &mut [[f32; LANES]]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the level was found on this machine.
    unsafe {
        match level {
            Level::Avx512Bf16 => return dots::multiply(rows, columns, sums),
            Level::Avx512Vnni | Level::Amx => return wide::multiply(rows, columns, sums),
            _ => {}
        }
    }
    multiply_by_compiler(level, rows, columns, sums);
}

/// # Safety
/// As for [`Rows::open`].
#[inline(always)]
unsafe fn open_rows_body(rows: &mut [[f32; STEP]; TILE], base: *const u8, stride: usize) {
    for (n, row) in rows.iter_mut().enumerate() {
        // SAFETY: one of the caller's rows.
        let bits = unsafe { base.wrapping_add(n * stride).cast::<[u16; STEP]>().read_unaligned() };
        for (v, bits) in row.iter_mut().zip(bits) {
            *v = bf16(bits);
        }
    }
}

per_level! {
    /// # Safety
    /// As for [`Rows::open`].
    unsafe open_rows(rows: &mut [[f32; STEP]; TILE], base: *const u8, stride: usize) => open_rows_body
}

/// # Safety
/// As for [`Columns::open`].
#[inline(always)]
unsafe fn open_columns_body([even, odd]: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) {
    for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
        // SAFETY: a row of the caller's tile.
        let pairs = unsafe { tile.wrapping_add(i * 64).cast::<[u32; LANES]>().read_unaligned() };
        for lane in 0..LANES {
            even[lane] = f32::from_bits(pairs[lane] << 16);
            odd[lane] = f32::from_bits(pairs[lane] & 0xffff_0000);
        }
    }
}

per_level! {
    /// # Safety
    /// As for [`Columns::open`].
    unsafe open_columns(columns: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) => open_columns_body
}

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
fn multiply_body(rows: &Rows, columns: &Columns, sums: &mut [[f32; LANES]]) {
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

per_level! { multiply_by_compiler(rows: &Rows, columns: &Columns, sums: &mut [[f32; LANES]]) => multiply_body }
