//! Few rows: weights are opened in registers, as integers of 16 bits, and multiplied with up to eight rows at once. Those that are stored open are
//! multiplied as bytes.

use super::activations::{QuantActivations, SUMS, TILE, TOTAL};
use super::layouts::Layout;
use crate::Level;

/// How far ahead of the codes memory is asked for, into the second level, and into the first. On Intel's processors inside a small page, where that also
/// sets their own prefetching going, and once more just before use; AMD's want it further ahead, and once. Bytes past the panel are the next panel's,
/// which is usually next.
#[derive(Clone, Copy)]
struct Ahead {
    far: usize,
    near: Option<usize>,
}

impl Ahead {
    fn of_this_machine() -> Self {
        match Level::detect() {
            Level::Avx512Bf16 => Self { far: 8192, near: None },
            _ => Self { far: 3584, near: Some(256) },
        }
    }
}

macro_rules! kernels {
    ($vectors:ident, $features:literal) => {
        pub(super) mod $vectors {
            use super::super::vectors::$vectors::*;
            use super::*;
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

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
                let both = or(left32(scale, 16), and(scale, all32(0xffff)));
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

            /// Activations of a superblock as the weights are: `[odd][line]`, pairs of 16 bits.
            ///
            /// # Safety
            /// `codes` must be those of a row.
            #[inline]
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn activations(codes: *const i8) -> [[i32; 64]; 2] {
                let mut pairs = [[0; 64]; 2];
                let lanes = 16 / HALVES;
                for line in (0..64).step_by(lanes) {
                    // SAFETY: some lines of the row, and of the words.
                    unsafe {
                        let bytes = load(codes.add(line / 16 * 1024 + line % 16 * 4).cast());
                        for (pairs, words) in pairs.iter_mut().zip(words(bytes)) {
                            store(pairs.as_mut_ptr().add(line).cast(), words);
                        }
                    }
                }
                pairs
            }

            /// One panel times rows `row .. row + N`, which must lie in one tile.
            ///
            /// # Safety
            /// The machine must have the instructions; `panel` must hold superblocks of layout `L`.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn dot<L: Layout, const N: usize>(
                panel: *const u8,
                x: &QuantActivations,
                row: usize,
                out: &mut [[f32; 16]; N],
            ) {
                let f = L::FORMAT;
                let (tile, r) = (row / TILE, row % TILE);
                let mut sums = [[zero_floats(); N]; HALVES];
                let ahead = Ahead::of_this_machine();
                for at in 0..x.supers * f.planes {
                    let s = at / f.planes;
                    // SAFETY: superblock `at` of the panel, and `s` of rows `r .. r + N` of the tile.
                    unsafe {
                        let block = panel.add(at * f.bytes());
                        let codes = x.codes(tile, s).add(r * 64);
                        let mut words = [[[0; 64]; 2]; N];
                        for (n, words) in words.iter_mut().enumerate().filter(|_| !f.is_open()) {
                            *words = activations(codes.add(n * 64));
                        }
                        for (half, sums) in sums.iter_mut().enumerate() {
                            let totals = match f.is_open() {
                                true => fours::<L, N>(block, (half, ahead), codes, x.sums(tile, s, r)),
                                false => pairs::<L, N>(block, (half, ahead), &words),
                            };
                            let mins = match f.has_min {
                                true => mins::<L, N>(block, half, x.sums(tile, s, r)),
                                false => [zero(); N],
                            };
                            for (n, sum) in sums.iter_mut().enumerate() {
                                let mut t = times(floats(totals[n]), units::<L>(block, half));
                                if f.has_min {
                                    let dmin = float_scales::<L>(block.add(32 + half * 16));
                                    t = fused_less(floats(mins[n]), dmin, t);
                                }
                                *sum = fused(t, all_floats(*x.scales(tile, s).add(r + n)), *sum);
                            }
                        }
                    }
                }
                for (half, sums) in sums.into_iter().enumerate() {
                    for (out, sum) in out.iter_mut().zip(sums) {
                        // SAFETY: the outputs of a half.
                        unsafe { store_floats(out.as_mut_ptr().add(half * 8), sum) };
                    }
                }
            }

            /// A superblock's exact sums of weights times activations: weights that are opened first.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn pairs<L: Layout, const N: usize>(
                block: *const u8,
                (half, ahead): (usize, Ahead),
                words: &[[[i32; 64]; 2]; N],
            ) -> [Ints; N] {
                let f = L::FORMAT;
                let mut totals = [[zero(); N]; CHAINS];
                for sub in 0..f.subs() {
                    // SAFETY: the caller's superblock.
                    let scale = unsafe { scales::<L>(block, half, sub) };
                    for i in sub * f.sub / 16..(sub + 1) * f.sub / 16 {
                        ask::<L>(block, half, i, ahead);
                        // SAFETY: the same, and `i` is below 16.
                        let weights = unsafe { open::<L>(block, half, i, scale) };
                        for (j, line) in weights.into_iter().enumerate() {
                            for (odd, w) in line.into_iter().enumerate() {
                                for (n, words) in words.iter().enumerate() {
                                    let total = &mut totals[(j * 2 + odd) % chains(N)][n];
                                    *total = add_pairs(*total, w, all32(words[odd][i * 4 + j]));
                                }
                            }
                        }
                    }
                }
                add_up(&totals)
            }

            /// The same of weights that are stored open. The 128 that are too much in each are taken out by the negated sums of activations.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn fours<L: Layout, const N: usize>(
                block: *const u8,
                (half, ahead): (usize, Ahead),
                codes: *const i8,
                sums: *const i32,
            ) -> [Ints; N] {
                let mut totals = [[zero(); N]; CHAINS];
                for (n, total) in totals[0].iter_mut().enumerate() {
                    // SAFETY: a row that is there.
                    *total = all32(unsafe { *sums.add(n * SUMS + TOTAL) } * 128);
                }
                for i in 0..16 {
                    ask::<L>(block, half, i, ahead);
                    for j in 0..4 {
                        // SAFETY: line `4 i + j` of the superblock, and of rows that are there.
                        unsafe {
                            let w = load(block.add(L::FORMAT.codes_at() + (i * 4 + j) * 64 + half * 32));
                            let x = codes.add(i / 4 * 1024 + i % 4 * 16 + j * 4).cast::<i32>();
                            for n in 0..N {
                                let total = &mut totals[j % chains(N)][n];
                                *total = add_fours(*total, w, all32(*x.add(n * 16)));
                            }
                        }
                    }
                }
                add_up(&totals)
            }

            /// Sums in turn for so many rows.
            const fn chains(rows: usize) -> usize {
                if rows < CHAINS { CHAINS / rows } else { 1 }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn add_up<const N: usize>(totals: &[[Ints; N]; CHAINS]) -> [Ints; N] {
                let mut all = totals[0];
                for more in &totals[1..chains(N)] {
                    all.iter_mut().zip(more).for_each(|(a, b)| *a = add32(*a, *b));
                }
                all
            }

            /// Asks memory for what lies ahead of part `i` of 16.
            #[inline]
            fn ask<L: Layout>(block: *const u8, half: usize, i: usize, ahead: Ahead) {
                let bytes = L::FORMAT.bytes();
                for at in (i * bytes / 16..(i + 1) * bytes / 16).step_by(64).filter(|_| half == 0) {
                    // SAFETY: hints, whatever the address.
                    unsafe {
                        _mm_prefetch::<_MM_HINT_T1>(block.wrapping_add(ahead.far + at).cast());
                        if let Some(near) = ahead.near {
                            _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(near + at).cast());
                        }
                    }
                }
            }

            /// A superblock's exact sums of mins times negated sums of activations.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn mins<L: Layout, const N: usize>(
                block: *const u8,
                half: usize,
                sums: *const i32,
            ) -> [Ints; N] {
                let f = L::FORMAT;
                let mut mins = [zero(); N];
                for sub in 0..f.subs() {
                    // SAFETY: sub-blocks of the layout, and of rows that are there.
                    unsafe {
                        let min = widen(block.add(f.mins_at() + sub * 16 + half * 8));
                        let sums = sums.add(if f.sub == 32 { 16 + sub } else { sub });
                        for (n, mins) in mins.iter_mut().enumerate() {
                            let sum = all32(*sums.add(n * SUMS));
                            *mins = add32(*mins, times32(min, sum));
                        }
                    }
                }
                mins
            }
        }
    };
}

kernels!(v512, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");
kernels!(v256, "avx2,fma,f16c");
