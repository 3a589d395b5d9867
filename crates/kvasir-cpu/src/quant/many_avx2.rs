//! Many rows with 256-bit vectors. Weights are opened once for a block of rows, as integers of 16 bits, and multiplied in pairs with activations
//! of 16 bits: there is no product of bytes that sums into 32 bits here.

use super::activations::{QuantActivations, TILE};
use super::few::v256::activations;
use super::format::{LANES, SUPER};
use super::layouts::Layout;
use super::opening::PARTS;
use super::opening::v256::{float_scales, lines, mins, open, units};
use super::pairs::{Pair, Room};
use super::vectors::v256::{load, words};
use crate::matmul::Output;
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows that are multiplied at once.
const ROWS: usize = 4;

/// Eight numbers of each half of a panel.
type Halves<T> = [[T; 8]; 2];

/// One superblock of a panel, as the products take it: of each four inputs the first and third make a pair, then of each the second and fourth.
#[repr(C, align(64))]
pub(super) struct Opened {
    weights: [Halves<i32>; SUPER / 2],
    /// Mins of two neighbouring sub-blocks.
    mins: [Halves<i32>; 8],
    d: Halves<f32>,
    dmin: Halves<f32>,
}

impl Opened {
    pub(super) const NONE: Self = Self {
        weights: [[[0; 8]; 2]; SUPER / 2],
        mins: [[[0; 8]; 2]; 8],
        d: [[0.0; 8]; 2],
        dmin: [[0.0; 8]; 2],
    };
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store(to: &mut [i32; 8], v: __m256i) {
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), v) }
}

/// # Safety
/// `block` must be a superblock of the layout.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn open_super<L: Layout>(block: *const u8, to: &mut Opened) {
    let f = L::FORMAT;
    for half in 0..2 {
        let mut put = |line: usize, words: [__m256i; 2]| {
            for (odd, words) in words.into_iter().enumerate() {
                store(&mut to.weights[odd * SUPER / 4 + line][half], words);
            }
        };
        for part in (0..PARTS).filter(|_| f.bits != 6) {
            // SAFETY: the caller's superblock.
            unsafe { lines::<L>(block, (half, part), 0, |line, bytes| put(line, words(bytes))) };
        }
        // They come in 16 bits.
        for i in (0..SUPER / 16).filter(|_| f.bits == 6) {
            // SAFETY: the caller's superblock.
            let lines = unsafe { open::<L>(block, half, i) };
            lines.into_iter().enumerate().for_each(|(j, words)| put(i * 4 + j, words));
        }
        // SAFETY: sub-blocks of the layout, and what begins it.
        unsafe {
            if f.has_min {
                for two in 0..f.subs() / 2 {
                    store(&mut to.mins[two][half], mins::<L>(block, half, two));
                }
                let dmin = float_scales::<L>(block.add(32 + half * 16));
                _mm256_storeu_ps(to.dmin[half].as_mut_ptr(), dmin);
            }
            _mm256_storeu_ps(to.d[half].as_mut_ptr(), units::<L>(block, half));
        }
    }
}

/// Activations of some rows' superblock, as pairs of 16 bits.
#[repr(C, align(32))]
struct Numbers {
    codes: [[i32; SUPER / 2]; ROWS],
    sums: [[i32; 8]; ROWS],
}

impl Numbers {
    /// # Safety
    /// [`ROWS`] rows of a tile must be there from row `r` on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn open<L: Layout>(&mut self, x: &QuantActivations, (tile, s, r): (usize, usize, usize)) {
        let f = L::FORMAT;
        for n in 0..ROWS {
            // SAFETY: the caller's rows.
            let sums = unsafe {
                self.codes[n].copy_from_slice(activations(x.codes(tile, s).add((r + n) * 64)).as_flattened());
                &*x.sums(tile, s).add(r + n)
            };
            if f.has_min {
                for (two, to) in self.sums[n].iter_mut().enumerate().take(f.subs() / 2) {
                    *to = sums.pair(f, two);
                }
            }
        }
    }
}

/// Sums of pairs of products.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pairs<const N: usize>(w: &[Halves<i32>], x: [&[i32; N]; ROWS]) -> [[__m256i; 2]; ROWS] {
    let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
    for (i, w) in w.iter().enumerate().take(N) {
        // SAFETY: eight integers each.
        let w = unsafe { [load(w[0].as_ptr().cast()), load(w[1].as_ptr().cast())] };
        for n in 0..ROWS {
            let x = _mm256_set1_epi32(x[n][i]);
            for half in 0..2 {
                sums[n][half] = _mm256_add_epi32(sums[n][half], _mm256_madd_epi16(w[half], x));
            }
        }
    }
    sums
}

/// A pair of panels times a block of rows, as [`super::pairs::panels`] says.
///
/// # Safety
/// As there: the machine must have the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn panels<L: Layout, const P: usize>(
    panels: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut Room,
    out: Option<(&Output<'_>, usize)>,
) {
    let f = L::FORMAT;
    let mut numbers = Numbers { codes: [[0; SUPER / 2]; ROWS], sums: [[0; 8]; ROWS] };
    for block in 0..x.supers * f.planes {
        let s = block / f.planes;
        for (panel, opened) in panels.panels.iter().zip(&mut room.halves) {
            // SAFETY: a superblock of the panel.
            unsafe { open_super::<L>(panel.add(block * f.bytes()), opened) };
        }
        for first in (0..rows.len()).step_by(ROWS) {
            let (tile, r) = ((rows.start + first) / TILE, (rows.start + first) % TILE);
            // SAFETY: activations are whole tiles.
            unsafe { numbers.open::<L>(x, (tile, s, r)) };
            for (opened, sums) in room.halves.iter().zip(&mut room.sums).take(P) {
                let totals = pairs(&opened.weights, numbers.codes.each_ref());
                let mins = match f.has_min {
                    true => pairs(&opened.mins[..f.subs() / 2], numbers.sums.each_ref()),
                    false => [[_mm256_setzero_si256(); 2]; ROWS],
                };
                for n in 0..ROWS {
                    for half in 0..2 {
                        // SAFETY: eight floats each; the row's scale.
                        unsafe {
                            let d = _mm256_loadu_ps(opened.d[half].as_ptr());
                            let mut t = _mm256_mul_ps(_mm256_cvtepi32_ps(totals[n][half]), d);
                            if f.has_min {
                                let dmin = _mm256_loadu_ps(opened.dmin[half].as_ptr());
                                t = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(mins[n][half]), dmin, t);
                            }
                            let sum = sums[first + n].as_mut_ptr().add(half * 8);
                            let before = if block == 0 { _mm256_setzero_ps() } else { _mm256_loadu_ps(sum) };
                            let scale = _mm256_set1_ps(*x.scales(tile, s).add(r + n));
                            _mm256_storeu_ps(sum, _mm256_fmadd_ps(t, scale, before));
                        }
                    }
                }
            }
        }
    }
    let Some((out, first)) = out else { return };
    for r in 0..rows.len() {
        // SAFETY: the caller's outputs.
        (0..P).for_each(|p| unsafe { out.store(rows.start + r, first + p * LANES, &room.sums[p][r]) });
    }
}
