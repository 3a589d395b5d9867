//! Many rows on the tile unit. `scale * (code - bias)` is a 16-bit integer: it is split into two planes of signed bytes, v = 256 h + l, whose
//! exact 32-bit products are put together per superblock. So no sub-block needs a rescaling of its own, and the result is that of
//! [`super::portable`] to the bit.

use super::activations::{QuantActivations, TILE};
use super::format::Format;
use super::vnni::{Layout, float_scales, open, sub_scales};
use crate::amx::{tile_dot_bf16, tile_dot_i8, tile_load, tile_store, tile_zero};
use std::arch::x86_64::*;

/// Bytes of one opened superblock: four tiles of high bytes, four of low bytes, one of mins, then d and dmin as floats.
pub(crate) const OPENED: usize = 8 * 1024 + 1024 + 128;
const MINS: usize = 8 * 1024;
const SCALES: usize = MINS + 1024;

/// Opens the panel's superblocks into `to`, [`OPENED`] bytes each.
///
/// # Safety
/// The machine must have the instructions, `panel` hold `supers` superblocks, and `to` be 64-byte aligned with room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn open_panel<L: Layout>(panel: *const u8, supers: usize, to: *mut u8) {
    let f = L::FORMAT;
    for s in 0..supers {
        // SAFETY: superblock `s` of both.
        unsafe {
            let (block, to) = (panel.add(s * f.bytes()), to.add(s * OPENED));
            open_codes::<L>(block, to);
            if f.has_min {
                open_mins(f, block, to.add(MINS));
                _mm512_store_ps(to.add(SCALES + 64).cast(), float_scales::<L>(block.add(32)));
            }
            _mm512_store_ps(to.add(SCALES).cast(), float_scales::<L>(block));
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn open_codes<L: Layout>(block: *const u8, to: *mut u8) {
    let f = L::FORMAT;
    let even = _mm512_set1_epi16(0x00ff);
    let sign = _mm512_set1_epi8(-128);
    let mut scale = _mm512_setzero_si512();
    let mut offset = _mm512_setzero_si512();
    for i in 0..16 {
        // SAFETY: `i` is below 16, the sub-block below their number; the stores stay within eight tiles.
        unsafe {
            if (i * 16) % f.sub == 0 {
                let d = sub_scales::<L>(block, i * 16 / f.sub);
                // In both halves of each lane.
                scale = _mm512_ternarylogic_epi32::<0xf8>(
                    _mm512_slli_epi32::<16>(d),
                    d,
                    _mm512_set1_epi32(0xffff),
                );
                // Half a low byte's range is added, so that the high byte rounds instead of truncating.
                offset = _mm512_sub_epi16(
                    _mm512_set1_epi16(128),
                    _mm512_mullo_epi16(scale, _mm512_set1_epi16(f.bias as i16)),
                );
            }
            let rows = open::<L>(block, i);
            for (j, row) in rows.into_iter().enumerate() {
                let a = _mm512_add_epi16(_mm512_mullo_epi16(_mm512_and_si512(row, even), scale), offset);
                let b = _mm512_add_epi16(_mm512_mullo_epi16(_mm512_srli_epi16::<8>(row), scale), offset);
                let low = _mm512_ternarylogic_epi32::<0xf8>(_mm512_slli_epi16::<8>(b), a, even);
                let high = _mm512_ternarylogic_epi32::<0xf4>(_mm512_srli_epi16::<8>(a), b, even);
                let at = to.add((i * 4 + j) * 64);
                _mm512_store_si512(at.cast(), high);
                _mm512_store_si512(at.add(4096).cast(), _mm512_xor_si512(low, sign));
            }
        }
    }
}

/// The tile of mins: row i holds those of sub-blocks 2i and 2i + 1 (of 16 inputs) as bf16, twice.
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

/// Where products of tiles wait to be put together.
#[repr(C, align(64))]
pub(crate) struct Products([[u8; 6 * 1024]; 2]);

impl Products {
    pub(crate) const fn new() -> Self {
        Self([[0; 6 * 1024]; 2])
    }
}

/// An opened panel times `TILES` (one or two) tiles of rows.
///
/// While the tile unit works on one superblock, the vectors put the products of the one before together.
///
/// # Safety
/// Tiles must be configured, the machine have the instructions, `opened` hold `x.supers` superblocks, and the tiles of rows exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn dot<L: Layout, const TILES: usize>(
    opened: *const u8,
    x: &QuantActivations,
    tile: usize,
    products: &mut Products,
    acc: &mut [[f32; 16]; 2 * TILE],
) {
    *acc = [[0.0; 16]; 2 * TILE];
    let acc = acc.as_mut_ptr();
    let base: [*mut u8; 2] = products.0.each_mut().map(|p| p.as_mut_ptr());
    for s in 0..=x.supers {
        let before = s.wrapping_sub(1);
        let fold = |quarter: usize| {
            if s > 0 {
                for eight in quarter * TILES..(quarter + 1) * TILES {
                    // SAFETY: the products of superblock `before` were stored a round ago.
                    unsafe {
                        let scales = opened.add(before * OPENED + SCALES);
                        fold_rows::<L>(base[before % 2], scales, x, tile, before, eight * 4, acc);
                    }
                }
            }
        };
        if s == x.supers {
            (0..4).for_each(fold);
            break;
        }
        // SAFETY: the pointers are those of superblock `s`; products have room for six tiles.
        unsafe {
            let b = opened.add(s * OPENED);
            let a = [x.codes(tile, s), x.codes(tile + TILES - 1, s)];
            tile_zero!(0);
            tile_zero!(1);
            if TILES == 2 {
                tile_zero!(2);
                tile_zero!(3);
            }
            for step in 0..4 {
                tile_load!(4, a[0].add(step * 1024), 64);
                tile_load!(6, b.add(step * 1024), 64);
                tile_dot_i8!(0, 4, 6);
                tile_load!(7, b.add(4096 + step * 1024), 64);
                tile_dot_i8!(1, 4, 7);
                if TILES == 2 {
                    tile_load!(5, a[1].add(step * 1024), 64);
                    tile_dot_i8!(2, 5, 6);
                    tile_dot_i8!(3, 5, 7);
                }
                fold(step);
            }
            store::<L, TILES>(base[s % 2], b.add(MINS), x, tile, s);
        }
    }
}

/// Stores the products of a superblock, those with its mins included.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn store<L: Layout, const TILES: usize>(
    to: *mut u8,
    mins: *const u8,
    x: &QuantActivations,
    tile: usize,
    s: usize,
) {
    // SAFETY: `to` has room for six tiles, `mins` is one.
    unsafe {
        tile_store!(0, to);
        tile_store!(1, to.add(1024));
        if TILES == 2 {
            tile_store!(2, to.add(2048));
            tile_store!(3, to.add(3072));
        }
        if L::FORMAT.has_min {
            tile_load!(6, mins, 64);
            tile_load!(4, x.parts(tile, s), 64);
            tile_zero!(0);
            tile_dot_bf16!(0, 4, 6);
            tile_store!(0, to.add(4096));
            if TILES == 2 {
                tile_load!(5, x.parts(tile + 1, s), 64);
                tile_zero!(2);
                tile_dot_bf16!(2, 5, 6);
                tile_store!(2, to.add(5120));
            }
        }
    }
}

/// Puts the products of four rows together and adds them to the sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn fold_rows<L: Layout>(
    from: *const u8,
    scales: *const u8,
    x: &QuantActivations,
    tile: usize,
    s: usize,
    first: usize,
    acc: *mut [f32; 16],
) {
    let which = first / TILE;
    // SAFETY: four rows of tile `which` of the products, of the activations' scales, and of the sums.
    unsafe {
        let d = _mm512_load_ps(scales.cast());
        let dmin = _mm512_load_ps(scales.add(64).cast());
        let row_scales = x.scales(tile + which, s).add(first % TILE);
        let from = from.add(which * 2048 + first % TILE * 64);
        let mins = from.add(4096 - which * 1024);
        for r in 0..4 {
            let high = _mm512_load_si512(from.add(r * 64).cast());
            let low = _mm512_load_si512(from.add(1024 + r * 64).cast());
            let total = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
            let mut t = _mm512_mul_ps(_mm512_cvtepi32_ps(total), d);
            if L::FORMAT.has_min {
                t = _mm512_fnmadd_ps(_mm512_load_ps(mins.add(r * 64).cast()), dmin, t);
            }
            let sum = (*acc.add(first + r)).as_mut_ptr();
            let scale = _mm512_set1_ps(*row_scales.add(r));
            _mm512_storeu_ps(sum, _mm512_fmadd_ps(t, scale, _mm512_loadu_ps(sum)));
        }
    }
}
