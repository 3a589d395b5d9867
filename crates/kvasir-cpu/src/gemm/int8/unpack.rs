//! Unpacks superblocks in registers: codes times sub-block scales to int8 (or int16 for 6-bit
//! codes).
//!
//! | codes | method |
//! |---|---|
//! | 4 and 5 bits | `tables` scales all code values; `of_tables` looks up 16 codes (`pshufb`) |
//! | 6 bits | `unpack_16bit` multiplies shifted codes by the scale (`pmulhrsw`) to 16 bits |
//! | 8 bits | `stored` loads weights that were unpacked at packing time |
//!
//! `zero_point` is 0 or 128 and makes weights unsigned for `vpdpbusd`. Compiled for 512-bit and
//! 256-bit vectors. All results equal `portable.rs`, which `tests.rs` checks.

use crate::weights::int8::layouts::Layout;

/// Parts of a superblock for unpacking: 32 inputs each.
pub(crate) const PARTS: usize = 8;

/// A line of codes that are stored by output: line `n` of the four of part `part`.
#[derive(Clone, Copy)]
pub(crate) struct OutputLine {
    pub(crate) half: usize,
    pub(crate) part: usize,
    pub(crate) n: usize,
}

macro_rules! unpacking {
    ($vectors:ident, $features:literal) => {
        pub(crate) mod $vectors {
            use super::*;
            use crate::gemm::int8::vectors::$vectors::*;

            /// The scales of a sub-block, in the low half of each 32-bit word.
            ///
            /// # Safety
            /// `block` must point at a superblock of layout `L` that is not stored unpacked; `half`
            /// selects a vector's outputs.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn scale_words<L: Layout>(block: *const u8, half: usize, sub: usize) -> Ints {
                let f = L::FORMAT;
                // SAFETY: the offset is that of the layout.
                let scale = unsafe { widen(block.add(f.scales_at() + sub * 16 + half * 8)) };
                if f.multiplier == 1 { scale } else { mullo16(scale, splat16(f.multiplier)) }
            }

            /// Lookup tables for 4- and 5-bit codes of inputs `32 part .. 32 part + 32`: first and
            /// last 16 inputs, then codes below 16 and the others. Each 16-byte lane belongs to one
            /// output, every fourth from the `n`th on, and holds the products of its scale with all
            /// code values, plus `zero_point`.
            ///
            /// # Safety
            /// As for [`scale_words`]; `part` must be below [`PARTS`] and `n` below 4.
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn tables<L: Layout>(
                block: *const u8,
                OutputLine { half, part, n }: OutputLine,
                zero_point: i32,
            ) -> [[Ints; 2]; 2] {
                let values = const { L::FORMAT.values() };
                let subs = 32 / L::FORMAT.sub;
                let mut all = [[zero(); 2]; 2];
                for (sub, tables) in all.iter_mut().enumerate().take(subs) {
                    let at = block.wrapping_add(L::FORMAT.scales_at() + (part * subs + sub) * 16);
                    // SAFETY: the scales of a sub-block of the caller's superblock.
                    let scale = spread(unsafe { broadcast_lane(at) }, half, n);
                    for (table, values) in
                        tables.iter_mut().zip(values.as_chunks::<2>().0).take(L::FORMAT.bits - 3)
                    {
                        // SAFETY: eight 16-bit integers each.
                        let (low, high) = unsafe {
                            (
                                broadcast_lane(values[0].as_ptr().cast()),
                                broadcast_lane(values[1].as_ptr().cast()),
                            )
                        };
                        let products = pack_saturated(mulhrs(scale, low), mulhrs(scale, high));
                        *table = xor(products, splat8(zero_point as i8));
                    }
                }
                if subs == 1 { [all[0]; 2] } else { all }
            }

            /// Looks up the first 16 inputs of the part, or the last 16, for the outputs of
            /// `tables`.
            ///
            /// # Safety
            /// As for [`tables`]; `n` must be below 4.
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn of_tables<L: Layout>(
                block: *const u8,
                OutputLine { half, part, n }: OutputLine,
                last: bool,
                tables: [Ints; 2],
            ) -> Ints {
                let f = L::FORMAT;
                // SAFETY: lines of the layout.
                unsafe {
                    let codes = load(block.add(f.codes_at() + half * 32 + (part * 4 + n) * 64));
                    let places = and(if last { right16(codes, 4) } else { codes }, splat8(15));
                    if f.bits == 4 {
                        return lookup(tables[0], places);
                    }
                    let fifths = load(block.add(f.high_at() + half * 32 + part * 64));
                    lookup_in(tables, places, fifths, n * 2 + last as usize)
                }
            }

            /// Unpacks 6-bit codes of inputs `16 i .. 16 i + 16` (a sub-block) to 16 bits. Of each
            /// line of four inputs: the first and third, then the second and fourth.
            ///
            /// # Safety
            /// As for [`scale_words`]; `i` must be below 16.
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn unpack_16bit<L: Layout>(
                block: *const u8,
                half: usize,
                i: usize,
            ) -> [[Ints; 2]; 4] {
                let at = L::FORMAT.codes_at() + half * 32 + i * 192;
                // SAFETY: the layout's lines, and the scales of a sub-block.
                let (mut lines, scale) = unsafe {
                    let line = |n: usize| load(block.add(at + n * 64));
                    let scale = scale_words::<L>(block, half, i);
                    (sixes([line(0), line(1), line(2)]), pair(scale, scale))
                };
                for word in lines.as_flattened_mut() {
                    *word = mulhrs(*word, scale);
                }
                lines
            }

            /// Moves 6-bit codes to the top of 16-bit lanes, even and odd inputs apart. Three lines
            /// are in the high bits of bytes; the fourth is in the low bits left over.
            #[inline]
            #[target_feature(enable = $features)]
            fn sixes(v: [Ints; 3]) -> [[Ints; 2]; 4] {
                let apart =
                    |v, mask: u16| [and(left16(v, 8), splat16(mask as i16)), and(v, splat16(mask as i16))];
                let two = |n: usize, mask| and(left16(v[n], 2 + 2 * n as i32), splat8(mask));
                let fourth = or(or(two(0, 0x0c), two(1, 0x30)), two(2, 0xc0_u8 as i8));
                [apart(v[0], 0xfc00), apart(v[1], 0xfc00), apart(v[2], 0xfc00), apart(fourth, 0xff00)]
            }

            /// One line of weights that are stored unpacked, plus `zero_point`.
            ///
            /// # Safety
            /// `block` must point at a superblock of layout `L` that is stored unpacked, and `line`
            /// must be below 64.
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn stored<L: Layout>(
                block: *const u8,
                half: usize,
                line: usize,
                zero_point: i32,
            ) -> Ints {
                // SAFETY: the caller's line.
                let v = unsafe { load(block.add(L::FORMAT.codes_at() + half * 32 + line * 64)) };
                xor(v, splat8((zero_point - 128) as i8))
            }

            /// Unpacks inputs `32 part .. 32 part + 32` to bytes plus `zero_point`, and calls `put` for
            /// each of the eight lines.
            ///
            /// # Safety
            /// As for [`scale_words`]; `part` must be below [`PARTS`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn lines<L: Layout>(
                block: *const u8,
                half: usize,
                part: usize,
                zero_point: i32,
                mut put: impl FnMut(usize, Ints),
            ) {
                let f = L::FORMAT;
                // Plain loops: closures mapped over arrays are not inlined here.
                // SAFETY: the caller's superblock.
                unsafe {
                    if f.stores_unpacked() {
                        for line in part * 8..(part + 1) * 8 {
                            put(line, stored::<L>(block, half, line, zero_point));
                        }
                    } else if f.by_output() {
                        let mut lines = [[zero(); 4]; 2];
                        for n in 0..4 {
                            let line = OutputLine { half, part, n };
                            let tables = tables::<L>(block, line, zero_point);
                            for (i, lines) in lines.iter_mut().enumerate() {
                                lines[n] = of_tables::<L>(block, line, i > 0, tables[i]);
                            }
                        }
                        for (i, four) in lines.into_iter().enumerate() {
                            for (j, v) in transpose_4x4(four).into_iter().enumerate() {
                                put(part * 8 + i * 4 + j, v);
                            }
                        }
                    } else {
                        for i in part * 2..part * 2 + 2 {
                            for (j, words) in unpack_16bit::<L>(block, half, i).into_iter().enumerate() {
                                put(i * 4 + j, xor(bytes(words), splat8(zero_point as i8)));
                            }
                        }
                    }
                }
            }

            /// Mins of sub-blocks `2 two` and `2 two + 1`, the first in the low half of a word.
            ///
            /// # Safety
            /// As for [`scale_words`]; both sub-blocks must exist.
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn mins<L: Layout>(block: *const u8, half: usize, two: usize) -> Ints {
                // SAFETY: the offset is that of the layout.
                unsafe { widen_two(block.add(L::FORMAT.mins_at() + two * 32 + half * 8)) }
            }

            /// Loads the 16-bit float scales d or dmin at `at` as f32.
            ///
            /// # Safety
            /// 16 bits per output must be readable at `at`.
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn float_scales<L: Layout>(at: *const u8) -> Floats {
                // SAFETY: the caller's bytes.
                let bits = unsafe { load_halves(at) };
                if L::FORMAT.bf16_d { bf16s(bits) } else { f16s(bits) }
            }

            /// `d * factor`: the f32 factor of the integer sums.
            ///
            /// # Safety
            /// As for [`scale_words`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn units<L: Layout>(block: *const u8, half: usize) -> Floats {
                // SAFETY: d is at the start of the superblock.
                times(unsafe { float_scales::<L>(block.add(half * 16)) }, splat_floats(L::FORMAT.factor()))
            }
        }
    };
}

unpacking!(v512_bf16, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
unpacking!(v512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
unpacking!(v256, "avx2,fma,f16c");
