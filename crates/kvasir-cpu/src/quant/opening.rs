//! Superblocks opened in registers: codes times the scales of their sub-blocks, in 16 bits or as bytes.

use super::layouts::Layout;
use kvasir_formats::encoding::E2M1_DOUBLED;

/// What codes that are floats stand for, in the high five bits of a byte.
const FLOATS: [i8; 16] = {
    let mut high = E2M1_DOUBLED;
    let mut code = 0;
    while code < high.len() {
        high[code] <<= 3;
        code += 1;
    }
    high
};

macro_rules! opening {
    ($vectors:ident, $features:literal) => {
        pub(super) mod $vectors {
            use super::super::vectors::$vectors::*;
            use super::*;

            /// The scales of a sub-block, each for two numbers of 16 bits; none where weights are stored open.
            ///
            /// # Safety
            /// `block` must point at a superblock of layout `L`, from `half` a vector's outputs on.
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn scales<L: Layout>(
                block: *const u8,
                half: usize,
                sub: usize,
            ) -> Ints {
                let f = L::FORMAT;
                if f.is_open() {
                    return zero();
                }
                // SAFETY: the offset is that of the layout.
                let scale = unsafe { widen(block.add(f.scales_at() + sub * 16 + half * 8)) };
                let both = pair(scale, scale);
                if f.times == 1 { both } else { times16(both, all16(f.times)) }
            }

            /// Inputs `16 i .. 16 i + 16`: of each line of four the first and the third, then the second and the fourth, in 16 bits.
            ///
            /// # Safety
            /// As for [`scales`]; `i` must be below 16, and `scale` that of its sub-block.
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn open<L: Layout>(
                block: *const u8,
                half: usize,
                i: usize,
                scale: Ints,
            ) -> [[Ints; 2]; 4] {
                let f = L::FORMAT;
                // Bits `from` to `from + bits` of each 16, moved to `to`.
                let moved = |v, from: i32, to: i32, bits: i32| {
                    let v = if to >= from { left16(v, to - from) } else { right16(v, from - to) };
                    and(v, all16((((1 << bits) - 1) << to) as i16))
                };
                // Where the high product of codes and their scale is shifted by as much as it should be.
                let top = 15 - f.shift() as i32;
                if f.bits == 6 {
                    // SAFETY: the layout's lines.
                    let mut lines = sixes(unsafe {
                        let line = |n: usize| load(block.add(f.codes_at() + half * 32 + (i * 3 + n) * 64));
                        [line(0), line(1), line(2)]
                    });
                    for word in lines.as_flattened_mut() {
                        *word = high_product(*word, scale);
                    }
                    return lines;
                }
                let mut lines = [[zero(); 2]; 4];
                if f.floats {
                    let codes_at = f.codes_at() + half * 32 + i * 128;
                    for (j, line) in lines.iter_mut().enumerate() {
                        // SAFETY: one of the layout's lines.
                        let codes = unsafe { load(block.add(codes_at + j / 2 * 64)) };
                        let values = looked_up(&FLOATS, and(right16(codes, j as i32 % 2 * 4), all8(15)));
                        *line = [left16(values, 8), and(values, all16(!0xff))];
                        for word in line {
                            *word = high_product(*word, scale);
                        }
                    }
                    return lines;
                }
                for (j, line) in lines.iter_mut().enumerate() {
                    if f.is_open() {
                        // SAFETY: one of the layout's lines.
                        let v = unsafe { load(block.add(f.codes_at() + (i * 4 + j) * 64 + half * 32)) };
                        *line = words(xor(v, all8(-128)));
                        continue;
                    }
                    // SAFETY: the offsets are those of the layout.
                    let (codes, fifths) = unsafe {
                        let fifths = match f.bits {
                            5 => load(block.add(f.high_at() + half * 32 + i / 2 * 64)),
                            _ => zero(),
                        };
                        (load(block.add(f.codes_at() + half * 32 + (i * 2 + j / 2) * 64)), fifths)
                    };
                    // Signs must be on top. Others are multiplied in the middle, where they lie or where swapped bytes bring them, by a
                    // scale that makes up for it: shifts are dear.
                    let to = if f.signed { top } else { 8 - j as i32 % 2 * 4 };
                    let scale = left16(scale, top - to);
                    for (odd, word) in line.iter_mut().enumerate() {
                        let byte = odd as i32 * 8;
                        let low = if f.signed {
                            moved(codes, byte + j as i32 % 2 * 4, to, 4)
                        } else {
                            let there = (j % 2 == 0) == (odd == 1);
                            and(if there { codes } else { swapped(codes) }, all16(15 << to))
                        };
                        let high = match f.bits {
                            5 => moved(fifths, byte + (i % 2 * 4 + j) as i32, to + 4, 1),
                            _ => zero(),
                        };
                        *word = high_product(or(low, high), scale);
                    }
                }
                lines
            }

            /// Codes of six bits on top of 16, even and odd: three lines have them in the high bits of bytes, the fourth's are in what is left.
            #[inline]
            #[target_feature(enable = $features)]
            fn sixes(v: [Ints; 3]) -> [[Ints; 2]; 4] {
                let apart =
                    |v, mask: u16| [and(left16(v, 8), all16(mask as i16)), and(v, all16(mask as i16))];
                let two = |n: usize, mask| and(left16(v[n], 2 + 2 * n as i32), all8(mask));
                let fourth = or(or(two(0, 0x0c), two(1, 0x30)), two(2, 0xc0_u8 as i8));
                [apart(v[0], 0xfc00), apart(v[1], 0xfc00), apart(v[2], 0xfc00), apart(fourth, 0xff00)]
            }

            /// Inputs `16 i .. 16 i + 16` as bytes: four lines.
            ///
            /// # Safety
            /// As for [`scales`]; `i` must be below 16.
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn lines<L: Layout>(
                block: *const u8,
                half: usize,
                i: usize,
            ) -> [Ints; 4] {
                let f = L::FORMAT;
                let mut lines = [zero(); 4];
                // Loops: closures that are mapped over arrays are calls.
                // SAFETY: the caller's superblock.
                unsafe {
                    if f.is_open() {
                        let at = block.add(f.codes_at() + half * 32 + i * 256);
                        for (j, line) in lines.iter_mut().enumerate() {
                            *line = xor(load(at.add(j * 64)), all8(-128));
                        }
                        return lines;
                    }
                    let words = open::<L>(block, half, i, scales::<L>(block, half, i * 16 / f.sub));
                    for (line, words) in lines.iter_mut().zip(words) {
                        *line = bytes(words);
                    }
                }
                lines
            }

            /// Mins of the sub-blocks `2 two` and `2 two + 1`, the first in the low half of a word.
            ///
            /// # Safety
            /// As for [`scales`]; there must be so many sub-blocks.
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn mins<L: Layout>(
                block: *const u8,
                half: usize,
                two: usize,
            ) -> Ints {
                // SAFETY: the offset is that of the layout.
                unsafe {
                    let at = block.add(L::FORMAT.mins_at() + two * 32 + half * 8);
                    pair(widen(at), widen(at.add(16)))
                }
            }

            /// Two integers of 16 bits to a word.
            #[inline]
            #[target_feature(enable = $features)]
            fn pair(a: Ints, b: Ints) -> Ints {
                or(and(a, all32(0xffff)), left32(b, 16))
            }

            /// The float scales d, or dmin, that begin at `at`.
            ///
            /// # Safety
            /// 16 bits for each output must be readable.
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn float_scales<L: Layout>(at: *const u8) -> Floats {
                // SAFETY: the caller's bytes.
                let bits = unsafe { load_halves(at) };
                if L::FORMAT.wide_d { bf16s(bits) } else { f16s(bits) }
            }

            /// What the integer sums are multiplied with.
            ///
            /// # Safety
            /// As for [`scales`].
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn units<L: Layout>(block: *const u8, half: usize) -> Floats {
                // SAFETY: they begin the superblock.
                times(unsafe { float_scales::<L>(block.add(half * 16)) }, all_floats(L::FORMAT.factor()))
            }
        }
    };
}

opening!(v512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
opening!(v256, "avx2,fma,f16c");
