//! Integer GEMM on AMX (`tdpbssd`): a pair of panels times a block of rows.
//!
//! Loop nest: superblocks outside, row tiles inside. Two panels' unpacked superblocks (10 KiB) stay
//! in L1 while all row tiles of the block pass, because tile products outrun L2 bandwidth. Software
//! pipeline: while the tile unit multiplies row tile `t`, vector code scales and accumulates the
//! products of tile `t - 1`, and weights of the next superblock are prefetched.
//!
//! - Four tile registers are used (two accumulators, one per operand). Unused registers leave room
//!   for results in flight, which is scarce while the sibling hyperthread is busy.
//! - Mins are multiplied by activation sums as one extra bf16 tile product, which is exact.
//! - The last superblock's sums go straight to the output, both panels side by side: output rows
//!   lie pages apart, and storing single cache lines is expensive.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::panel_pair::{BLOCK, Pair, PairScratch, prefetch};
use crate::gemm::int8::unpack::PARTS;
use crate::gemm::int8::unpack::v512::{float_scales, lines, units};
use crate::gemm::output::{Destination, OutputsFrom};
use crate::isa::amx::{tile_dot_bf16, tile_dot_i8, tile_load, tile_store, tile_zero};
use crate::isa::tile::{LANES, TILE};
use crate::weights::int8::format::Format;
use crate::weights::int8::layouts::Layout;
use std::arch::x86_64::*;
use std::ops::Range;

/// Byte offset of the bf16 tile of mins.
const MINS: usize = 4 * 1024;
/// Byte offset of the f32 units; dmin follows.
const SCALES: usize = MINS + 1024;

/// Bytes of the products of a row tile with two panels.
const PRODUCTS: usize = 2 * 1024;

/// Eighths of the next superblock that are prefetched during unpacking; the rest is prefetched
/// beside the first products. A core stalls on more outstanding prefetches than it has fill
/// buffers, so they are spread out.
const PREFETCHED_WHILE_UNPACKING: usize = 3;

/// Unpacks one superblock of a panel to int8 tiles in `to`, and prefetches part of the `next` one.
///
/// # Safety
/// The CPU must support the target features. `block` must be a superblock of the layout, and `to`
/// must be 64-byte aligned with room for `panel_pair::UNPACKED` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_superblock<L: Layout>(block: *const u8, next: *const u8, to: *mut u8) {
    let f = L::FORMAT;
    // SAFETY: the caller's superblock and room.
    unsafe {
        for part in 0..PARTS {
            prefetch::<L, 1>(
                [next],
                PREFETCHED_WHILE_UNPACKING * part..PREFETCHED_WHILE_UNPACKING * (part + 1),
                8 * PARTS,
            );
            lines::<L>(block, 0, part, 0, |line, bytes| {
                _mm512_store_si512(to.add(line * 64).cast(), bytes);
            });
        }
        if f.has_min {
            unpack_mins(f, block, to.add(MINS));
            _mm512_store_ps(to.add(SCALES + 64).cast(), float_scales::<L>(block.add(32)));
        }
        _mm512_store_ps(to.add(SCALES).cast(), units::<L>(block, 0));
    }
}

/// Writes the bf16 tile of mins: row `i` holds those of sub-blocks `2i` and `2i + 1` (of 16
/// inputs), repeated in row `i + 8`.
///
/// # Safety
/// `block` must be a superblock of the format, and `to` be 64-byte aligned with room for a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_mins(f: Format, block: *const u8, to: *mut u8) {
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

/// `panel_pair::panels` on AMX: a pair of panels times a block of at most [`BLOCK`] rows.
///
/// While the tile unit works on one row tile, vector code folds the products of the one before.
///
/// # Safety
/// As there; AMX tiles must be configured, and the CPU must support the target features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn panels<L: Layout, const P: usize>(
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    scratch: &mut PairScratch,
    out: Option<OutputsFrom<'_>>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK);
    let f = L::FORMAT;
    let blocks = x.superblocks * f.planes;
    let unpacked: [*mut u8; P] = std::array::from_fn(|p| scratch.tiles.unpacked[p].as_mut_ptr());
    let sums: [*mut [f32; LANES]; P] = std::array::from_fn(|p| scratch.sums[p].as_mut_ptr());
    let products = scratch.tiles.products.each_mut().map(|p| p.as_mut_ptr());
    let (tile, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    for block in 0..blocks {
        let (s, last) = (block / f.planes, block + 1 == blocks);
        // Scales and accumulates the products of row tile `t` with panel `p`.
        let fold = |t: usize, p: usize| {
            // SAFETY: the products were stored one tile ago. The sums are those of the tile's rows,
            // all of which exist if they go to the output.
            unsafe {
                let from = products[t % 2].add(p * 1024);
                let sums = sums[p].add(t * TILE).cast::<f32>();
                let to = match out.filter(|_| last && (t + 1) * TILE <= rows.len()) {
                    Some(OutputsFrom { out, first }) => {
                        out.destination(rows.start + t * TILE, first + p * LANES)
                    }
                    None => Destination { at: sums, step: LANES, lanes: u16::MAX },
                };
                let before = (block > 0).then_some(sums.cast_const());
                fold_tile::<L>(from, unpacked[p].add(SCALES), x.scales(tile + t, s), before, to);
            }
        };
        // Unpacked next: the panels' next superblocks, at the end the first ones of the next
        // panels.
        let next: [*const u8; P] = std::array::from_fn(|p| pair.at(p, block + 1, blocks, f.bytes()));
        // SAFETY: superblocks of the panels, and superblock `s` of the rows; products have room for
        // a row tile.
        unsafe {
            for p in 0..P {
                unpack_superblock::<L>(pair.at(p, block, blocks, f.bytes()), next[p], unpacked[p]);
            }
            for t in 0..tiles {
                let beside = |step: usize| {
                    // Spread the prefetches over the first two row tiles, if there are two.
                    let at = if tiles == 1 { step * 2..step * 2 + 2 } else { t * 4 + step..t * 4 + step + 1 };
                    if at.end <= 8 {
                        let prefetched =
                            |at| 8 * PREFETCHED_WHILE_UNPACKING + (8 - PREFETCHED_WHILE_UNPACKING) * at;
                        prefetch::<L, P>(next, prefetched(at.start)..prefetched(at.end), 8 * 8);
                    }
                    if t > 0 && step.is_multiple_of(2) && step / 2 < P {
                        fold(t - 1, step / 2);
                    }
                };
                let (one, to) = (tile + t, products[t % 2]);
                multiply::<P>(x.codes(one, s), unpacked, to, beside);
                multiply_mins::<L, P>(x.parts(one, s), unpacked, to);
            }
        }
        (0..P).for_each(|p| fold(tiles - 1, p));
    }
    let Some(OutputsFrom { out, first }) = out else { return };
    // The rows of a partial last tile.
    for r in rows.len() / TILE * TILE..rows.len() {
        // SAFETY: the caller's outputs.
        (0..P).for_each(|p| unsafe { out.store(rows.start + r, first + p * LANES, &scratch.sums[p][r]) });
    }
}

/// Multiplies a row tile by `P` panels' unpacked superblocks and stores one product tile per panel.
/// Calls `beside(step)` after each of the four steps, to overlap other work.
///
/// # Safety
/// AMX tiles must be configured, `x` must be four tiles, and `to` must have room for two panels'
/// products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn multiply<const P: usize>(
    x: *const i8,
    unpacked: [*mut u8; P],
    to: *mut u8,
    beside: impl Fn(usize),
) {
    // SAFETY: four tiles of each operand; two product tiles are writable at `to`.
    unsafe {
        tile_zero!(0);
        if P == 2 {
            tile_zero!(1);
        }
        for step in 0..4 {
            let at = step * 1024;
            tile_load!(2, x.add(at), 64);
            tile_load!(3, unpacked[0].add(at), 64);
            tile_dot_i8!(0, 2, 3);
            if P == 2 {
                tile_load!(3, unpacked[P - 1].add(at), 64);
                tile_dot_i8!(1, 2, 3);
            }
            beside(step);
        }
        store::<P>(to);
    }
}

/// Multiplies activation sums by mins as bf16 tiles, exact in bf16 and f32.
///
/// # Safety
/// As for [`multiply`], but `parts` is one tile, and the products follow those of the weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn multiply_mins<L: Layout, const P: usize>(parts: *const u8, unpacked: [*mut u8; P], to: *mut u8) {
    if !L::FORMAT.has_min {
        return;
    }
    // SAFETY: a tile of each operand; two product tiles are writable behind the others.
    unsafe {
        tile_zero!(0);
        if P == 2 {
            tile_zero!(1);
        }
        tile_load!(2, parts, 64);
        tile_load!(3, unpacked[0].add(MINS), 64);
        tile_dot_bf16!(0, 2, 3);
        if P == 2 {
            tile_load!(3, unpacked[P - 1].add(MINS), 64);
            tile_dot_bf16!(1, 2, 3);
        }
        store::<P>(to.add(PRODUCTS));
    }
}

/// Stores the product tiles of a row tile.
///
/// # Safety
/// AMX tiles must be configured, and `to` must have room for `P` product tiles.
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

/// Folds a product tile: scales the products, subtracts mins, adds the sums `before`, and stores
/// the result in `to`.
///
/// # Safety
/// The products must have been stored by [`multiply`] and [`multiply_mins`], aligned. `scales` must
/// be those of the unpacked superblock, and 16 rows' scales, sums and destinations must exist.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn fold_tile<L: Layout>(
    from: *const u8,
    scales: *const u8,
    row_scales: *const f32,
    before: Option<*const f32>,
    to: Destination,
) {
    // SAFETY: one tile of products, with the scales, sums and destinations of its rows.
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
