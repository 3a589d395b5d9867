//! Many rows on the tile unit.
//!
//! Superblocks are the outer loop: two panels' opened superblocks stay in the first-level cache while all rows of a block pass, because
//! tile products outrun the second-level cache. A tile of rows meets two panels, in four tile registers: those that are not used are room for
//! results on their way, of which there is little while the core's other thread is at work.
//! The last superblock's sums go straight to their places, two panels' side by side: rows lie pages apart, and a line alone is dear.

use super::activations::QuantActivations;
use super::format::Format;
use super::layouts::Layout;
use super::opening::PARTS;
use super::opening::v512::{float_scales, lines, units};
use super::pairs::{self, BLOCK, Pair, ask};
use crate::amx::{tile_dot_bf16, tile_dot_i8, tile_load, tile_store, tile_zero};
use crate::matmul::{Output, Place};
use crate::tile::{LANES, TILE};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of one opened superblock: four tiles of weights, one of mins, then the units and dmin as floats.
const OPENED: usize = 4 * 1024 + 1024 + 128;
const MINS: usize = 4 * 1024;
const SCALES: usize = MINS + 1024;

/// Bytes of a tile of rows' products with two panels.
const PRODUCTS: usize = 2 * 1024;

/// What a thread works in, besides the sums.
#[repr(C, align(64))]
pub(super) struct Room {
    opened: [[u8; OPENED]; 2],
    /// Products of a tile of rows with two panels, waiting to be put together, then those of mins.
    products: [[u8; 4 * 1024]; 2],
}

impl Room {
    pub(super) const NONE: Self = Self { opened: [[0; OPENED]; 2], products: [[0; 4 * 1024]; 2] };
}

/// Eighths of what is opened next that memory is asked for while something is opened; the rest is asked for beside the first products.
/// Who asks for more than a core can wait for is held up, so it is spread over all the time there is.
const ASKED_IN_OPENING: usize = 3;

/// Opens one superblock of a panel into `to`, and asks memory for some of the `next` one.
///
/// # Safety
/// The machine must have the instructions, `block` be a superblock of the layout, and `to` be 64-byte aligned with room for [`OPENED`] bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn open_super<L: Layout>(block: *const u8, next: *const u8, to: *mut u8) {
    let f = L::FORMAT;
    // SAFETY: the caller's superblock and room.
    unsafe {
        for part in 0..PARTS {
            ask::<L, 1>([next], ASKED_IN_OPENING * part..ASKED_IN_OPENING * (part + 1), 8 * PARTS);
            lines::<L>(block, (0, part), 0, |line, bytes| {
                _mm512_store_si512(to.add(line * 64).cast(), bytes);
            });
        }
        if f.has_min {
            open_mins(f, block, to.add(MINS));
            _mm512_store_ps(to.add(SCALES + 64).cast(), float_scales::<L>(block.add(32)));
        }
        _mm512_store_ps(to.add(SCALES).cast(), units::<L>(block, 0));
    }
}

/// The tile of mins: row i holds those of sub-blocks 2i and 2i + 1 (of 16 inputs) as bf16, twice.
///
/// # Safety
/// `block` must be a superblock of the format, and `to` be 64-byte aligned with room for a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn open_mins(f: Format, block: *const u8, to: *mut u8) {
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    for i in 0..8 {
        let (a, b) = if f.sub == 32 { (i, i) } else { (2 * i, 2 * i + 1) };
        // SAFETY: sub-blocks of the layout; 16 rows of the tile.
        unsafe {
            let min = |sub: usize| {
                let m = _mm512_cvtepi8_epi32(_mm_loadu_si128(block.add(f.mins_at() + sub * 16).cast()));
                _mm512_castps_si512(_mm512_cvtepi32_ps(m))
            };
            let pair = _mm512_or_si512(_mm512_srli_epi32::<16>(min(a)), _mm512_and_si512(min(b), high));
            _mm512_store_si512(to.add(i * 64).cast(), pair);
            _mm512_store_si512(to.add(i * 64 + 512).cast(), pair);
        }
    }
}

/// A pair of panels times a block of at most [`BLOCK`] rows, as [`super::pairs::panels`] says.
///
/// While the tile unit works on a tile of rows, the vectors put the products of the one before together.
///
/// # Safety
/// As there: tiles must be configured, and the machine have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn panels<L: Layout, const P: usize>(
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut pairs::Room,
    out: Option<(&Output<'_>, usize)>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK);
    let f = L::FORMAT;
    let blocks = x.supers * f.planes;
    let opened: [*mut u8; P] = std::array::from_fn(|p| room.tiles.opened[p].as_mut_ptr());
    let sums: [*mut [f32; LANES]; P] = std::array::from_fn(|p| room.sums[p].as_mut_ptr());
    let products = room.tiles.products.each_mut().map(|p| p.as_mut_ptr());
    let (tile, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    for block in 0..blocks {
        let (s, last) = (block / f.planes, block + 1 == blocks);
        // Puts together the products of tile `t` of the rows with panel `p`.
        let fold = |t: usize, p: usize| {
            // SAFETY: the products were stored a tile ago; the sums are those of the tile's rows, which are all there if they go to
            // their places.
            unsafe {
                let from = products[t % 2].add(p * 1024);
                let sums = sums[p].add(t * TILE).cast::<f32>();
                let to = match out.filter(|_| last && (t + 1) * TILE <= rows.len()) {
                    Some((out, first)) => out.place(rows.start + t * TILE, first + p * LANES),
                    None => Place { at: sums, step: LANES, lanes: u16::MAX },
                };
                let before = (block > 0).then_some(sums.cast_const());
                fold_tile::<L>(from, opened[p].add(SCALES), x.scales(tile + t, s), before, to);
            }
        };
        // What is opened next: the panels' next superblocks, in the end those of the panels that are multiplied next.
        let next: [*const u8; P] = std::array::from_fn(|p| pair.at(p, block + 1, blocks, f.bytes()));
        // SAFETY: superblocks of panels, and `s` of rows; products have room for a tile of rows.
        unsafe {
            for p in 0..P {
                open_super::<L>(pair.at(p, block, blocks, f.bytes()), next[p], opened[p]);
            }
            for t in 0..tiles {
                let beside = |step: usize| {
                    // Beside the first two tiles, where there are two.
                    let at = if tiles == 1 { step * 2..step * 2 + 2 } else { t * 4 + step..t * 4 + step + 1 };
                    if at.end <= 8 {
                        let asked = |at| 8 * ASKED_IN_OPENING + (8 - ASKED_IN_OPENING) * at;
                        ask::<L, P>(next, asked(at.start)..asked(at.end), 8 * 8);
                    }
                    if t > 0 && step.is_multiple_of(2) && step / 2 < P {
                        fold(t - 1, step / 2);
                    }
                };
                let (one, to) = (tile + t, products[t % 2]);
                multiply::<P>(x.codes(one, s), opened, to, beside);
                multiply_mins::<L, P>(x.parts(one, s), opened, to);
            }
        }
        (0..P).for_each(|p| fold(tiles - 1, p));
    }
    let Some((out, first)) = out else { return };
    // Rows of a tile that is not full.
    for r in rows.len() / TILE * TILE..rows.len() {
        // SAFETY: the caller's outputs.
        (0..P).for_each(|p| unsafe { out.store(rows.start + r, first + p * LANES, &room.sums[p][r]) });
    }
}

/// Multiplies a tile of rows with `P` panels' open superblocks and stores the products, a tile for each; does what is to be done beside.
///
/// # Safety
/// Tiles must be configured, `x` be four tiles, and there be room for the products of two panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn multiply<const P: usize>(x: *const i8, opened: [*mut u8; P], to: *mut u8, beside: impl Fn(usize)) {
    // SAFETY: four tiles of each operand, and room for two of products.
    unsafe {
        tile_zero!(0);
        if P == 2 {
            tile_zero!(1);
        }
        for step in 0..4 {
            let at = step * 1024;
            tile_load!(2, x.add(at), 64);
            tile_load!(3, opened[0].add(at), 64);
            tile_dot_i8!(0, 2, 3);
            if P == 2 {
                tile_load!(3, opened[P - 1].add(at), 64);
                tile_dot_i8!(1, 2, 3);
            }
            beside(step);
        }
        store::<P>(to);
    }
}

/// The same for sums of activations and mins, exact in bf16 and f32.
///
/// # Safety
/// As for [`multiply`], but `parts` is one tile, and the room is behind that of the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn multiply_mins<L: Layout, const P: usize>(parts: *const u8, opened: [*mut u8; P], to: *mut u8) {
    if !L::FORMAT.has_min {
        return;
    }
    // SAFETY: a tile of each operand, and room for two of products behind the others.
    unsafe {
        tile_zero!(0);
        if P == 2 {
            tile_zero!(1);
        }
        tile_load!(2, parts, 64);
        tile_load!(3, opened[0].add(MINS), 64);
        tile_dot_bf16!(0, 2, 3);
        if P == 2 {
            tile_load!(3, opened[P - 1].add(MINS), 64);
            tile_dot_bf16!(1, 2, 3);
        }
        store::<P>(to.add(PRODUCTS));
    }
}

/// Stores the tiles of products of a tile of rows.
///
/// # Safety
/// Tiles must be configured, and there be room for those of `P` panels.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const P: usize>(to: *mut u8) {
    // SAFETY: the caller's room.
    unsafe {
        tile_store!(0, to);
        if P == 2 {
            tile_store!(1, to.add(1024));
        }
    }
}

/// Puts the products of a tile together, adds the sums `before`, and writes them `to` their place.
///
/// # Safety
/// The products must be there and aligned, as [`multiply`] and [`multiply_mins`] have stored them, `scales` be those of the opened superblock, and there be
/// 16 rows' scales, sums and places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn fold_tile<L: Layout>(
    from: *const u8,
    scales: *const u8,
    row_scales: *const f32,
    before: Option<*const f32>,
    to: Place,
) {
    // SAFETY: one tile of products, and its rows of the activations' scales, of the sums, and of the place.
    unsafe {
        let units = _mm512_load_ps(scales.cast());
        let dmin = _mm512_load_ps(scales.add(64).cast());
        for r in 0..TILE {
            let from = from.add(r * 64);
            let mut t = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(from.cast())), units);
            if L::FORMAT.has_min {
                t = _mm512_fnmadd_ps(_mm512_load_ps(from.add(PRODUCTS).cast()), dmin, t);
            }
            let sum = match before {
                Some(sums) => _mm512_load_ps(sums.add(r * LANES)),
                None => _mm512_setzero_ps(),
            };
            let sum = _mm512_fmadd_ps(t, _mm512_set1_ps(*row_scales.add(r)), sum);
            _mm512_mask_storeu_ps(to.at.add(r * to.step), to.lanes, sum);
        }
    }
}
