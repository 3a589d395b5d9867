//! Many rows on the tile unit. `scale * (code - bias)` is a 16-bit integer: it is split into two planes of bytes, v = 256 h + l with l not negative, whose
//! exact 32-bit products are put together per superblock. So no sub-block needs a rescaling of its own, and the result is that of
//! [`super::portable`] to the bit.
//!
//! Superblocks are the outer loop: two panels' opened superblocks stay in the first-level cache while all rows of a block pass, because
//! tile products outrun the second-level cache. Storing four tiles costs as much as four products, so nothing is stored twice. The last
//! superblock's sums go straight to their places, two panels' side by side: rows lie pages apart, and a line alone is dear.

use super::activations::{QuantActivations, TILE};
use super::format::{Format, LANES};
use super::layouts::Layout;
use super::pairs::{self, BLOCK, Pair};
use super::vnni::{float_scales, open, sub_scales};
use crate::amx::{tile_dot_bf16, tile_dot_i8, tile_dot_low, tile_load, tile_store, tile_zero};
use crate::matmul::{Output, Place};
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes of one opened superblock: four tiles of high bytes, four of low bytes, one of mins, then d and dmin as floats.
const OPENED: usize = 8 * 1024 + 1024 + 128;
const MINS: usize = 8 * 1024;
const SCALES: usize = MINS + 1024;

/// What a thread works in, besides the sums.
#[repr(C, align(64))]
pub(super) struct Room {
    opened: [[u8; OPENED]; 2],
    /// Products of tiles, waiting to be put together: four, and two of mins.
    products: [[u8; 6 * 1024]; 2],
}

impl Room {
    pub(super) const NONE: Self = Self { opened: [[0; OPENED]; 2], products: [[0; 6 * 1024]; 2] };
}

/// Opens one superblock of a panel into `to`, and asks memory for the `next` one.
///
/// # Safety
/// The machine must have the instructions, `block` be a superblock of the layout, and `to` be 64-byte aligned with room for [`OPENED`] bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn open_super<L: Layout>(block: *const u8, next: *const u8, to: *mut u8) {
    let f = L::FORMAT;
    // SAFETY: the caller's superblock and room.
    unsafe {
        open_codes::<L>(block, next, to);
        if f.has_min {
            open_mins(f, block, to.add(MINS));
            _mm512_store_ps(to.add(SCALES + 64).cast(), float_scales::<L>(block.add(32)));
        }
        _mm512_store_ps(to.add(SCALES).cast(), float_scales::<L>(block));
    }
}

/// How codes become 16-bit products with their sub-block's scale, even inputs apart from odd ones.
struct Scaling {
    /// The scale in every 16 bits, or, where it is a byte, in every even one of them.
    even: __m512i,
    /// The same in the odd bytes.
    odd: __m512i,
    /// What is added to each product: what the codes' bias makes.
    offset: __m512i,
}

impl Scaling {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn of<L: Layout>(block: *const u8, sub: usize) -> Self {
        let f = L::FORMAT;
        // SAFETY: the caller's superblock and sub-block.
        let d = unsafe { sub_scales::<L>(block, sub) };
        let both =
            |d| _mm512_or_si512(_mm512_slli_epi32::<16>(d), _mm512_and_si512(d, _mm512_set1_epi32(0xffff)));
        let wide = both(d);
        let even = if f.scale_bytes() == 2 { wide } else { _mm512_and_si512(wide, _mm512_set1_epi16(0xff)) };
        let offset = _mm512_mullo_epi16(wide, _mm512_set1_epi16(-f.bias as i16));
        Self { even, odd: _mm512_slli_epi16::<8>(even), offset }
    }

    /// The products of a vector of codes, even and odd.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    fn products<L: Layout>(&self, codes: __m512i) -> [__m512i; 2] {
        let f = L::FORMAT;
        let [a, b] = if f.scale_bytes() == 2 {
            let even = _mm512_and_si512(codes, _mm512_set1_epi16(0xff));
            [
                _mm512_mullo_epi16(even, self.even),
                _mm512_mullo_epi16(_mm512_srli_epi16::<8>(codes), self.even),
            ]
        } else if takes_bias_first(f) {
            let signed = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
            [_mm512_maddubs_epi16(self.even, signed), _mm512_maddubs_epi16(self.odd, signed)]
        } else {
            [_mm512_maddubs_epi16(codes, self.even), _mm512_maddubs_epi16(codes, self.odd)]
        };
        if f.bias == 0 || takes_bias_first(f) {
            return [a, b];
        }
        [_mm512_add_epi16(a, self.offset), _mm512_add_epi16(b, self.offset)]
    }
}

/// Whether codes of a byte lose their bias before they are multiplied; their scales are unsigned bytes.
const fn takes_bias_first(f: Format) -> bool {
    f.bias == 128 && f.scale_bytes() == 1
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn open_codes<L: Layout>(block: *const u8, next: *const u8, to: *mut u8) {
    let f = L::FORMAT;
    // SAFETY: every superblock has a first sub-block.
    let mut scaling = unsafe { Scaling::of::<L>(block, 0) };
    for i in 0..16 {
        // SAFETY: `i` is below 16, the sub-block below their number.
        unsafe {
            if (i * 16) % f.sub == 0 {
                scaling = Scaling::of::<L>(block, i * 16 / f.sub);
            }
            open_part::<L>(block, next, i, &scaling, to);
        }
    }
}

/// Opens 16 inputs' codes, the `i`th of 16 parts.
///
/// # Safety
/// As for [`open_super`]; `scaling` must be that of the part's sub-block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn open_part<L: Layout>(block: *const u8, next: *const u8, i: usize, scaling: &Scaling, to: *mut u8) {
    let lines = L::FORMAT.bytes().div_ceil(64);
    let (first, second) = (_mm512_set1_epi16(0xff), _mm512_set1_epi16(0xff00_u16 as i16));
    // A part at a time: asked for at once it would be waited for.
    for line in i * lines / 16..(i + 1) * lines / 16 {
        _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(line * 64).cast());
    }
    // SAFETY: the stores stay within eight tiles.
    unsafe {
        for (j, row) in open::<L>(block, i).into_iter().enumerate() {
            let [a, b] = scaling.products::<L>(row);
            let at = to.add((i * 4 + j) * 64);
            // The even input's byte, or the odd one's where the mask says so.
            let high = _mm512_ternarylogic_epi32::<0xf8>(_mm512_srli_epi16::<8>(a), b, second);
            let low = _mm512_ternarylogic_epi32::<0xf8>(_mm512_slli_epi16::<8>(b), a, first);
            _mm512_store_si512(at.cast(), high);
            _mm512_store_si512(at.add(4096).cast(), low);
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

/// A pair of panels times a block of at most [`BLOCK`] rows, as [`super::pairs::panels`] says.
///
/// While the tile unit works on one tile of rows, the vectors put the products of the one before together.
///
/// # Safety
/// Tiles must be configured, the machine have the instructions, the panels have layout `L`, and the rows exist.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn panels<L: Layout, const P: usize>(
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut pairs::Room,
    out: Option<(&Output, usize)>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK);
    let panels = pair.panels;
    let supers = x.supers;
    let opened: [*mut u8; P] = std::array::from_fn(|p| room.tiles.opened[p].as_mut_ptr());
    let sums: [*mut [f32; LANES]; P] = std::array::from_fn(|p| room.sums[p].as_mut_ptr());
    let products = room.tiles.products.each_mut().map(|p| p.as_mut_ptr());
    let (tile, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    for s in 0..supers {
        let last = s + 1 == supers;
        let fold = |t: usize, part: Range<usize>| {
            let full = (t + 1) * TILE <= rows.len();
            for p in 0..P {
                // SAFETY: the products of tile `t` were stored a round ago; the sums are those of its rows, which are all there if they go to
                // their places.
                unsafe {
                    let from = products[t % 2].add(p * 2048);
                    let scales = opened[p].add(SCALES);
                    let sums = sums[p].add(t * TILE).cast::<f32>();
                    let to = match out.filter(|_| last && full) {
                        Some((out, first)) => out.place(rows.start + t * TILE, first + p * LANES),
                        None => Place { at: sums, step: LANES, lanes: u16::MAX },
                    };
                    let before = (s > 0).then_some(sums.cast_const());
                    let row_scales = x.scales(tile + t, s);
                    fold_rows::<L>(from, 4096 - p * 1024, scales, row_scales, before, to, part.clone());
                }
            }
        };
        // What is opened next: the panels' next superblocks, in the end those of the panels behind them.
        let next = panels.map(|panel| match last {
            true => panel.wrapping_add(pair.step * supers * L::FORMAT.bytes()),
            false => panel.wrapping_add((s + 1) * L::FORMAT.bytes()),
        });
        // SAFETY: superblock `s` of panels and rows; products have room for six tiles.
        unsafe {
            for p in 0..P {
                open_super::<L>(panels[p].add(s * L::FORMAT.bytes()), next[p], opened[p]);
            }
            for t in 0..tiles {
                let a = x.codes(tile + t, s);
                tile_zero!(0);
                tile_zero!(1);
                if P == 2 {
                    tile_zero!(2);
                    tile_zero!(3);
                }
                for step in 0..4 {
                    let at = step * 1024;
                    tile_load!(4, a.add(at), 64);
                    tile_load!(6, opened[0].add(at), 64);
                    tile_dot_i8!(0, 4, 6);
                    tile_load!(7, opened[0].add(4096 + at), 64);
                    tile_dot_low!(1, 4, 7);
                    if P == 2 {
                        tile_load!(5, opened[1].add(at), 64);
                        tile_dot_i8!(2, 4, 5);
                        tile_load!(6, opened[1].add(4096 + at), 64);
                        tile_dot_low!(3, 4, 6);
                    }
                    if t > 0 {
                        fold(t - 1, step * 4..step * 4 + 4);
                    }
                }
                store::<L, P>(products[t % 2], opened, x.parts(tile + t, s));
            }
        }
        fold(tiles - 1, 0..TILE);
    }
    let Some((out, first)) = out else { return };
    // Rows of a tile that is not full.
    for r in rows.len() / TILE * TILE..rows.len() {
        (0..P).for_each(|p| out.store(rows.start + r, first + p * LANES, &room.sums[p][r]));
    }
}

/// Stores the products of a tile of rows, those with the superblock's mins included.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn store<L: Layout, const P: usize>(to: *mut u8, opened: [*mut u8; P], parts: *const u8) {
    // SAFETY: `to` has room for six tiles, `parts` and the mins are one each.
    unsafe {
        tile_store!(0, to);
        tile_store!(1, to.add(1024));
        if P == 2 {
            tile_store!(2, to.add(2048));
            tile_store!(3, to.add(3072));
        }
        if L::FORMAT.has_min {
            tile_load!(4, parts, 64);
            tile_load!(6, opened[0].add(MINS), 64);
            tile_zero!(0);
            tile_dot_bf16!(0, 4, 6);
            if P == 2 {
                tile_load!(7, opened[1].add(MINS), 64);
                tile_zero!(1);
                tile_dot_bf16!(1, 4, 7);
            }
            tile_store!(0, to.add(4096));
            if P == 2 {
                tile_store!(1, to.add(5120));
            }
        }
    }
}

/// Puts the products of some rows of a tile together, adds the sums `before`, and writes them `to` their place. The mins' products are
/// `mins` bytes behind the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn fold_rows<L: Layout>(
    from: *const u8,
    mins: usize,
    scales: *const u8,
    row_scales: *const f32,
    before: Option<*const f32>,
    to: Place,
    rows: Range<usize>,
) {
    // SAFETY: rows of one tile of products, of the activations' scales, of the sums, and of the place.
    unsafe {
        let d = _mm512_load_ps(scales.cast());
        let dmin = _mm512_load_ps(scales.add(64).cast());
        for r in rows {
            let from = from.add(r * 64);
            let high = _mm512_load_si512(from.cast());
            let low = _mm512_load_si512(from.add(1024).cast());
            let total = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
            let mut t = _mm512_mul_ps(_mm512_cvtepi32_ps(total), d);
            if L::FORMAT.has_min {
                t = _mm512_fnmadd_ps(_mm512_load_ps(from.add(mins).cast()), dmin, t);
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
