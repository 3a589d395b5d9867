//! Many rows with 512-bit byte dot products. A panel's superblock is opened once for a block of rows, into the first-level cache, beside the products
//! of the one before; eight rows and two panels are multiplied at once, so that no operand is loaded for one product alone.
//!
//! One operand of a byte product is unsigned: weights are stored with 128 added, which negated sums of activations take out again.

use super::activations::{QuantActivations, SUMS, TILE, TOTAL};
use super::few::v512::{float_scales, units};
use super::format::LANES;
use super::layouts::Layout;
use super::pairs::{self, BLOCK, Pair, Room, ask};
use crate::matmul::{Output, Place};
use std::arch::x86_64::*;
use std::ops::Range;

/// Parts that a superblock is opened in: four lines each.
const PARTS: usize = 16;

/// One superblock of a panel, as the products take it. Mins are those of neighbouring sub-blocks.
#[repr(C, align(64))]
pub(super) struct Opened {
    weights: [[u8; 64]; 64],
    mins: [[i32; LANES]; 8],
    d: [f32; LANES],
    dmin: [f32; LANES],
}

impl Opened {
    pub(super) const NONE: Self =
        Self { weights: [[0; 64]; 64], mins: [[0; LANES]; 8], d: [0.0; LANES], dmin: [0.0; LANES] };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store<T>(to: &mut T, v: __m512i) {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: 64 bytes.
    unsafe { _mm512_storeu_si512((to as *mut T).cast(), v) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load<T>(from: &T) -> __m512i {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512((from as *const T).cast()) }
}

/// Two integers of 16 bits each to a word.
#[inline]
#[target_feature(enable = "avx512f")]
fn pair(a: __m512i, b: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_and_si512(a, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32::<16>(b))
}

/// A superblock that is opened a part at a time, while another one is multiplied: products leave half of the units for vectors idle.
struct Opening<'o> {
    block: *const u8,
    /// What comes behind it, which is asked for meanwhile.
    next: *const u8,
    to: &'o mut Opened,
}

impl Opening<'_> {
    /// Opens part `i` of [`PARTS`].
    ///
    /// # Safety
    /// `block` must be a superblock of the layout.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn part<L: Layout>(&mut self, i: usize) {
        ask::<L, 1>([self.next], i..i + 1, PARTS);
        // Those that are stored open are multiplied where they lie.
        if L::FORMAT.is_open() {
            return;
        }
        let sign = _mm512_set1_epi8(-128);
        // SAFETY: the caller's superblock.
        let lines = unsafe { pairs::lines::<L>(self.block, i) };
        for (line, bytes) in self.to.weights[i * 4..].iter_mut().zip(lines) {
            store(line, _mm512_xor_si512(bytes, sign));
        }
    }

    /// Opens the rest: what belongs to all of it.
    ///
    /// # Safety
    /// As for [`part`](Self::part).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn end<L: Layout>(self) {
        let Self { block, to, .. } = self;
        let f = L::FORMAT;
        // SAFETY: sub-blocks of the layout, and what begins it.
        unsafe {
            _mm512_storeu_ps(to.d.as_mut_ptr(), units::<L>(block, 0));
            if f.has_min {
                let min = |sub: usize| {
                    _mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(f.mins_at() + sub * 16).cast()))
                };
                for two in 0..f.subs() / 2 {
                    store(&mut to.mins[two], pair(min(two * 2), min(two * 2 + 1)));
                }
                _mm512_storeu_ps(to.dmin.as_mut_ptr(), float_scales::<L>(block.add(32)));
            }
        }
    }

    /// Opens all of it.
    ///
    /// # Safety
    /// As for [`part`](Self::part).
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn all<L: Layout>(mut self) {
        // SAFETY: the caller's superblock.
        unsafe {
            (0..PARTS).for_each(|i| self.part::<L>(i));
            self.end::<L>();
        }
    }
}

/// The exact sums of `R` rows, whose activations are at `codes` and `sums`, times a superblock's weights. Another superblock is opened beside the products.
///
/// # Safety
/// So many rows of a tile must be there, and 64 lines of weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn superblock<L: Layout, const R: usize>(
    weights: *const u8,
    codes: *const i32,
    sums: *const i32,
    mut opening: Option<Opening<'_>>,
) -> [__m512i; R] {
    // SAFETY: all offsets are those of the superblock and of rows that are there.
    unsafe {
        let mut totals = std::array::from_fn(|n| _mm512_set1_epi32(*sums.add(n * SUMS + TOTAL) * 128));
        for part in 0..PARTS {
            if let Some(opening) = &mut opening {
                opening.part::<L>(part);
            }
            for line in part * 4..part * 4 + 4 {
                let w = _mm512_loadu_si512(weights.add(line * 64).cast());
                let at = codes.add(line / 16 * 256 + line % 16);
                for n in 0..R {
                    totals[n] = _mm512_dpbusd_epi32(totals[n], w, _mm512_set1_epi32(*at.add(n * 16)));
                }
            }
        }
        if let Some(opening) = opening {
            opening.end::<L>();
        }
        totals
    }
}

/// The exact sum of a row's negated sums of activations, at `sums`, times mins.
///
/// # Safety
/// They must be there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn mins<L: Layout>(opened: &Opened, sums: *const i32) -> __m512i {
    let f = L::FORMAT;
    let mut pairs = [0i32; 8];
    // SAFETY: the sums of 8 or 16 sub-blocks; 16 or 32 bytes.
    unsafe {
        match f.sub {
            32 => _mm_storeu_si128(
                pairs.as_mut_ptr().cast(),
                _mm256_cvtepi32_epi16(_mm256_loadu_si256(sums.add(16).cast())),
            ),
            _ => _mm256_storeu_si256(
                pairs.as_mut_ptr().cast(),
                _mm512_cvtepi32_epi16(_mm512_loadu_si512(sums.cast())),
            ),
        }
    }
    let mins = opened.mins.iter().zip(pairs).take(f.subs() / 2);
    mins.fold(_mm512_setzero_si512(), |all, (mins, sums)| {
        _mm512_dpwssd_epi32(all, load(mins), _mm512_set1_epi32(sums))
    })
}

/// A pair of panels times a block of at most [`BLOCK`] rows, as [`super::pairs::panels`] says.
///
/// # Safety
/// The machine must have the instructions, the panels have layout `L`, and the rows exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn panels<L: Layout, const P: usize>(
    panels: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut Room,
    out: Option<(&Output, usize)>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK);
    let f = L::FORMAT;
    let blocks = x.supers * f.planes;
    // Behind the last superblock come those of the panels that are multiplied next.
    let at = |p: usize, block: usize| {
        let block = if block < blocks { block } else { panels.step * blocks + block - blocks };
        panels.panels[p].wrapping_add(block * f.bytes())
    };
    let [mut now, mut then] = room.vectors.each_mut();
    for p in 0..P {
        // SAFETY: a superblock of the panel.
        unsafe { Opening { block: at(p, 0), next: at(p, 1), to: &mut now[p] }.all::<L>() };
    }
    for block in 0..blocks {
        let last = block + 1 == blocks;
        let super_of_rows = block / f.planes;
        for first in (0..rows.len()).step_by(TILE) {
            for p in 0..P {
                let weights = match f.is_open() {
                    true => at(p, block).wrapping_add(f.codes_at()),
                    false => now[p].weights.as_ptr().cast(),
                };
                let work = Work { opened: &now[p], weights, rows: rows.start + first, block: super_of_rows };
                let sums = &mut room.sums[p][first..];
                let n = rows.len() - first;
                let to = out.filter(|_| last && (n >= TILE || n == TILE / 2));
                let to = to.map(|(out, at)| out.place(rows.start + first, at + p * LANES));
                // The first rows open the next superblock.
                let next = (first == 0 && !last).then(|| Opening {
                    block: at(p, block + 1),
                    next: at(p, block + 2),
                    to: &mut then[p],
                });
                // SAFETY: activations are whole tiles; sums are there for a block, and places for rows that all are.
                unsafe {
                    match (n > TILE / 2, next) {
                        (true, Some(next)) => work.add::<L, TILE>(x, block == 0, sums, to, Some(next)),
                        (true, None) => work.add::<L, TILE>(x, block == 0, sums, to, None),
                        (false, Some(next)) => {
                            work.add::<L, { TILE / 2 }>(x, block == 0, sums, to, Some(next))
                        }
                        (false, None) => work.add::<L, { TILE / 2 }>(x, block == 0, sums, to, None),
                    }
                }
            }
        }
        std::mem::swap(&mut now, &mut then);
    }
    let Some((out, first)) = out else { return };
    // Rows that are no tile, nor half a one.
    let rest = rows.len() % TILE;
    for r in rows.len() - if rest == TILE / 2 { 0 } else { rest }..rows.len() {
        (0..P).for_each(|p| out.store(rows.start + r, first + p * LANES, &room.sums[p][r]));
    }
}

/// Some rows of a tile and one superblock of a panel.
struct Work<'w> {
    opened: &'w Opened,
    weights: *const u8,
    /// The first row, which begins a tile.
    rows: usize,
    /// The superblock of their activations.
    block: usize,
}

impl Work<'_> {
    /// Adds the products of `R` rows to their `sums`, or puts what comes of it at a place.
    ///
    /// # Safety
    /// As for [`panels`]; there must be so many rows, sums, and rows at the place.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn add<L: Layout, const R: usize>(
        &self,
        x: &QuantActivations,
        is_first: bool,
        sums: &mut [[f32; LANES]],
        to: Option<Place>,
        next: Option<Opening<'_>>,
    ) {
        let f = L::FORMAT;
        let (tile, s) = (self.rows / TILE, self.block);
        let before = sums.as_mut_ptr().cast::<f32>();
        let to = to.unwrap_or(Place { at: before, step: LANES, lanes: u16::MAX });
        // SAFETY: as the caller vouches.
        unsafe {
            let codes = x.codes(tile, s).cast();
            let rows = x.sums(tile, s, 0);
            let totals = superblock::<L, R>(self.weights, codes, rows, next);
            let d = _mm512_loadu_ps(self.opened.d.as_ptr());
            let dmin = _mm512_loadu_ps(self.opened.dmin.as_ptr());
            for n in 0..R {
                let mut t = _mm512_mul_ps(_mm512_cvtepi32_ps(totals[n]), d);
                if f.has_min {
                    let mins = mins::<L>(self.opened, rows.add(n * SUMS));
                    t = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins), dmin, t);
                }
                let before = match is_first {
                    true => _mm512_setzero_ps(),
                    false => _mm512_loadu_ps(before.add(n * LANES)),
                };
                let scale = _mm512_set1_ps(*x.scales(tile, s).add(n));
                let sum = _mm512_fmadd_ps(t, scale, before);
                _mm512_mask_storeu_ps(to.at.add(n * to.step), to.lanes, sum);
            }
        }
    }
}
