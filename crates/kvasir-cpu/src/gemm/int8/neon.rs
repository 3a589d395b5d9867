//! Integer GEMV and GEMM on Arm NEON: 16 outputs in four 128-bit vectors, up to four rows at once.
//!
//! Weights are unpacked to int8 in registers and multiplied by an [`Int8Dot`]. Results have the
//! bits of `portable.rs`.

use crate::gemm::int8::activations::QuantActivations;
use crate::isa::neon::{Int8Dot, Sdot};
use crate::isa::tile::TILE;
use crate::weights::int8::layouts::Layout;
use std::arch::aarch64::*;
use std::arch::asm;

/// Unpacks inputs `16 i .. 16 i + 16` to int8: four lines of four vectors of four outputs. `scales`
/// are those of the sub-block.
///
/// # Safety
/// `block` must point at a superblock of layout `L`, and `i` be below 16.
#[inline(always)]
unsafe fn unpack<L: Layout>(block: *const u8, i: usize, scales: &[int16x8_t; 4]) -> [[int8x16_t; 4]; 4] {
    let f = L::FORMAT;
    if f.by_output() {
        // SAFETY: the caller's superblock.
        return unsafe { by_output::<L>(block, i) };
    }
    // SAFETY: NEON is part of the aarch64 baseline.
    let mut lines = [[unsafe { vdupq_n_s8(0) }; 4]; 4];
    // Shifts bits `from .. from + bits` of each 16-bit lane to bit `to`.
    // SAFETY: NEON is part of the aarch64 baseline.
    let moved = |v: uint8x16_t, from: usize, to: usize, bits: u32| unsafe {
        let v = vshlq_u16(vreinterpretq_u16_u8(v), vdupq_n_s16(to as i16 - from as i16));
        vandq_u16(v, vdupq_n_u16((((1u32 << bits) - 1) << to) as u16))
    };
    // Bit position of the codes at which the rounding high multiply by the scale shifts by the
    // right amount.
    let to = 15 - f.shift();
    for (j, line) in lines.iter_mut().enumerate() {
        for (v, bytes) in line.iter_mut().enumerate() {
            // SAFETY: the offsets are those of the layout.
            *bytes = unsafe {
                let codes = block.add(f.codes_at() + v * 16);
                if f.stores_unpacked() {
                    let stored = vld1q_u8(codes.add((i * 4 + j) * 64));
                    *bytes = vreinterpretq_s8_u8(veorq_u8(stored, vdupq_n_u8(128)));
                    continue;
                }
                let six = |n: usize, byte: usize, from: usize, to: usize, bits: u32| {
                    moved(vld1q_u8(codes.add((i * 3 + n) * 64)), byte + from, to, bits)
                };
                // Three lines are in the high six bits of bytes; the fourth is in the low bits left
                // over.
                let word = |byte: usize| match j {
                    0..3 => six(j, byte, 2, to, 6),
                    _ => vorrq_u16(
                        vorrq_u16(six(0, byte, 0, to, 2), six(1, byte, 0, to + 2, 2)),
                        six(2, byte, 0, to + 4, 2),
                    ),
                };
                let [even, odd] =
                    [word(0), word(8)].map(|w| vqrdmulhq_s16(vreinterpretq_s16_u16(w), scales[v]));
                // The even input's byte, with the odd one's above it.
                vreinterpretq_s8_s16(vsliq_n_s16::<8>(even, odd))
            };
        }
    }
    lines
}

/// Unpacks 4- and 5-bit codes: table lookup of 16 inputs of an output in products of its scale,
/// then a transpose.
///
/// # Safety
/// As for [`unpack`].
#[inline(always)]
unsafe fn by_output<L: Layout>(block: *const u8, i: usize) -> [[int8x16_t; 4]; 4] {
    let f = L::FORMAT;
    let values = const { L::FORMAT.values() };
    // SAFETY: NEON is part of the aarch64 baseline.
    let mut lines = [[unsafe { vdupq_n_s8(0) }; 4]; 4];
    // SAFETY: lines of the layout; NEON is part of the aarch64 baseline.
    unsafe {
        let values = values.map(|values| vld1q_s16(values.as_ptr()));
        for v in 0..4 {
            let codes = block.add(f.codes_at() + i / 2 * 256 + v * 16);
            let scales = block.add(f.scales_at() + i * 16 / f.sub * 16 + v * 4).cast::<i8>();
            let mut rows = [vdupq_n_s32(0); 4];
            for (n, row) in rows.iter_mut().enumerate() {
                let scale = vdupq_n_s16(i16::from(*scales.add(n)) << 8);
                let [a, b, c, d] = values.map(|values| vmovn_s16(vqrdmulhq_s16(values, scale)));
                let both = vld1q_u8(codes.add(n * 64));
                let places =
                    if i.is_multiple_of(2) { vandq_u8(both, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(both) };
                let bytes = if f.bits == 4 {
                    vqtbl1q_s8(vcombine_s8(a, b), places)
                } else {
                    let fifths = vld1q_u8(block.add(f.high_at() + i / 2 * 64 + v * 16));
                    let bit = vdupq_n_u8(1 << (n * 2 + i % 2));
                    let fifth = vandq_u8(vtstq_u8(fifths, bit), vdupq_n_u8(16));
                    let tables = int8x16x2_t(vcombine_s8(a, b), vcombine_s8(c, d));
                    vqtbl2q_s8(tables, vorrq_u8(places, fifth))
                };
                *row = vreinterpretq_s32_s8(bytes);
            }
            let [a, b, c, d] = rows;
            let (odd, even) = (vtrn1q_s32(a, b), vtrn2q_s32(a, b));
            let (next_odd, next_even) = (vtrn1q_s32(c, d), vtrn2q_s32(c, d));
            let halves = |first: int32x4_t, second: int32x4_t| {
                let (first, second) = (vreinterpretq_s64_s32(first), vreinterpretq_s64_s32(second));
                [vtrn1q_s64(first, second), vtrn2q_s64(first, second)].map(|v| vreinterpretq_s8_s64(v))
            };
            let ([one, three], [two, four]) = (halves(odd, next_odd), halves(even, next_even));
            (lines[0][v], lines[1][v], lines[2][v], lines[3][v]) = (one, two, three, four);
        }
    }
    lines
}

/// The scales of a sub-block, each in two 16-bit lanes.
///
/// # Safety
/// `block` must point at a superblock of layout `L`.
#[inline(always)]
unsafe fn scales<L: Layout>(block: *const u8, sub: usize) -> [int16x8_t; 4] {
    let f = L::FORMAT;
    // SAFETY: the offset is that of the layout; the result is unused where weights are stored
    // unpacked.
    unsafe {
        let [low, high] = bytes(block.add(f.scales_at() + sub * 16));
        [vzip1q_s16(low, low), vzip2q_s16(low, low), vzip1q_s16(high, high), vzip2q_s16(high, high)]
            .map(|scale| vmulq_n_s16(scale, f.multiplier))
    }
}

/// Widens 16 signed bytes to 16 bits.
///
/// # Safety
/// 16 bytes must be readable at `at`.
#[inline(always)]
unsafe fn bytes(at: *const u8) -> [int16x8_t; 2] {
    // SAFETY: the caller's bytes.
    unsafe {
        let v = vld1q_s8(at.cast());
        [vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)]
    }
}

/// Widens 16-bit integers to 32 bits.
#[inline(always)]
fn words([low, high]: [int16x8_t; 2]) -> [int32x4_t; 4] {
    // SAFETY: NEON is part of the aarch64 baseline.
    unsafe {
        [
            vmovl_s16(vget_low_s16(low)),
            vmovl_high_s16(low),
            vmovl_s16(vget_low_s16(high)),
            vmovl_high_s16(high),
        ]
    }
}

/// Loads the 16-bit float scales d or dmin at `at` as f32.
///
/// # Safety
/// 32 bytes must be readable at `at`.
#[inline(always)]
unsafe fn float_scales<L: Layout>(at: *const u8) -> [float32x4_t; 4] {
    std::array::from_fn(|v| {
        // SAFETY: the caller's 32 bytes.
        unsafe {
            let bits = vld1_u16(at.add(v * 8).cast());
            if L::FORMAT.bf16_d {
                return vreinterpretq_f32_u32(vshll_n_u16::<16>(bits));
            }
            let wide: float32x4_t;
            // Inline assembly, because the intrinsic is unstable.
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) bits, options(pure, nomem, nostack, preserves_flags));
            wide
        }
    })
}

/// GEMV kernel: one panel times rows `row .. row + N`, which must lie in one tile.
///
/// # Safety
/// The CPU must support the instructions of `D`; `panel` must hold superblocks of layout `L`, and
/// the rows must exist.
pub(crate) unsafe fn dot<L: Layout, D: Int8Dot, const N: usize>(
    panel: *const u8,
    x: &QuantActivations,
    row: usize,
    out: &mut [[f32; 16]; N],
) {
    let f = L::FORMAT;
    let (tile, r) = (row / TILE, row % TILE);
    // SAFETY: NEON is part of the aarch64 baseline.
    let mut acc = [[unsafe { vdupq_n_f32(0.0) }; 4]; N];
    for at in 0..x.superblocks * f.planes {
        let s = at / f.planes;
        // SAFETY: superblock `at` of the panel, and `s` of rows `r .. r + N` of the tile.
        unsafe {
            let block = panel.add(at * f.bytes());
            let (total, mins) = superblock::<L, D, N>(block, x, tile, s, r);
            let d = float_scales::<L>(block);
            for n in 0..N {
                let scale = vdupq_n_f32(*x.scales(tile, s).add(r + n));
                for v in 0..4 {
                    let mut t = vmulq_f32(vcvtq_f32_s32(total[n][v]), vmulq_n_f32(d[v], f.factor()));
                    if f.has_min {
                        let dmin = float_scales::<L>(block.add(32));
                        t = vfmsq_f32(t, vcvtq_f32_s32(mins[n][v]), dmin[v]);
                    }
                    acc[n][v] = vfmaq_f32(acc[n][v], t, scale);
                }
            }
        }
    }
    for n in 0..N {
        for v in 0..4 {
            // SAFETY: four floats of 16.
            unsafe { vst1q_f32(out[n].as_mut_ptr().add(v * 4), acc[n][v]) };
        }
    }
}

/// Int32 sums: `[row][vector]`, four outputs each.
type Sums<const N: usize> = [[int32x4_t; 4]; N];

/// Exact sums of one superblock: weights times activations, and mins times negated sums of
/// activations.
///
/// # Safety
/// As for [`dot`].
#[inline(always)]
unsafe fn superblock<L: Layout, D: Int8Dot, const N: usize>(
    block: *const u8,
    x: &QuantActivations,
    tile: usize,
    s: usize,
    r: usize,
) -> (Sums<N>, Sums<N>) {
    let f = L::FORMAT;
    let (mut totals, mut mins) = ([[D::NONE; 4]; N], [[Sdot::NONE; 4]; N]);
    // SAFETY: upheld by the caller.
    unsafe {
        let codes = x.codes(tile, s).add(r * 64);
        for sub in 0..f.subs() {
            let scales = scales::<L>(block, sub);
            for i in sub * f.sub / 16..(sub + 1) * f.sub / 16 {
                let w = unpack::<L>(block, i, &scales);
                for (n, totals) in totals.iter_mut().enumerate() {
                    let x = vreinterpretq_s32_s8(vld1q_s8(codes.add(i / 4 * 1024 + i % 4 * 16 + n * 64)));
                    let x = [
                        vdupq_laneq_s32::<0>(x),
                        vdupq_laneq_s32::<1>(x),
                        vdupq_laneq_s32::<2>(x),
                        vdupq_laneq_s32::<3>(x),
                    ]
                    .map(|x| vreinterpretq_s8_s32(x));
                    for (v, total) in totals.iter_mut().enumerate() {
                        *total = D::add(*total, [w[0][v], w[1][v]], [x[0], x[1]]);
                        *total = D::add(*total, [w[2][v], w[3][v]], [x[2], x[3]]);
                    }
                }
            }
            if !f.has_min {
                continue;
            }
            let min = words(bytes(block.add(f.mins_at() + sub * 16)));
            for (n, mins) in mins.iter_mut().enumerate() {
                let sum = vdupq_n_s32(i32::from((*x.sums(tile, s).add(r + n)).of_subs(f)[sub]));
                mins.iter_mut().zip(min).for_each(|(mins, min)| *mins = vmlaq_s32(*mins, min, sum));
            }
        }
    }
    (totals.map(|totals| totals.map(D::finish)), mins)
}
