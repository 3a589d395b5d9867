//! Unpacks blocks of a panel in registers: codes to 16-bit pairs, scales and mins to f32.
//!
//! Code line `n` of a block holds the bytes of inputs `4 n` to `4 n + 3`, output by output. As 16-bit
//! integers, its low bytes are the pair of the first and third input, its high bytes that of the
//! second and fourth; activations are stored in this order. Narrower codes unpack the same way: a
//! shift and a mask select a line's bits in both bytes of each 16-bit integer.

use crate::weights::quant::format::{BLOCKS_PER_SUPERBLOCK, Format, Scales, Values};
use crate::weights::quant::layouts::Layout;
use kvasir_formats::encoding::{E2M1_DOUBLED, IQ4_VALUES};

/// Addresses of a block of a panel, and of d (and dmin) of its superblock.
#[derive(Clone, Copy)]
pub(crate) struct BlockPtr {
    pub(crate) d: *const u8,
    pub(crate) at: *const u8,
}

impl BlockPtr {
    /// Block `block` of a panel.
    #[inline(always)]
    pub(crate) fn of<L: Layout>(panel: *const u8, block: usize) -> Self {
        let d = panel.wrapping_add(block / BLOCKS_PER_SUPERBLOCK * L::FORMAT.superblock_bytes());
        let at =
            d.wrapping_add(L::FORMAT.d_bytes() + block % BLOCKS_PER_SUPERBLOCK * L::FORMAT.block_bytes());
        Self { d, at }
    }
}

impl Format {
    /// The table values of 4-bit codes plus the zero point.
    const fn value_table(self) -> [u8; 16] {
        let values = match self.values {
            Values::Iq4 => IQ4_VALUES,
            Values::E2m1 => E2M1_DOUBLED,
            Values::Code => [0; 16],
        };
        let mut table = [0; 16];
        let mut code = 0;
        while code < 16 {
            table[code] = (values[code] as i32 + self.zero_point) as u8;
            code += 1;
        }
        table
    }
}

macro_rules! unpacking {
    ($vectors:ident, $features:meta) => {
        pub(crate) mod $vectors {
            use super::*;
            use crate::isa::int_vectors::$vectors::*;

            /// The values of code line `line` of a block, before the zero point is subtracted: two
            /// vectors of 16-bit pairs.
            ///
            /// # Safety
            /// `at` must point at a block of layout `L`; `half` selects a vector's outputs.
            #[inline]
            #[$features]
            pub(crate) unsafe fn line<L: Layout>(at: *const u8, half: usize, line: usize) -> [Ints; 2] {
                let f = L::FORMAT;
                let (together, from) = (8 / f.low, line % (8 / f.low) * f.low);
                // SAFETY: the offset is that of the layout.
                let low = unsafe { load(at.add(f.codes_at() + line / together * 64 + half * 32)) };
                if f.values != Values::Code {
                    let codes = and(shr16(low, from), splat16(0x0f0f));
                    let values = shuffle_bytes(broadcast_128(const { &L::FORMAT.value_table() }), codes);
                    return [and(values, splat16(0xff)), shr16(values, 8)];
                }
                let mask = splat16(0xff >> (8 - f.low));
                let mut pairs = [and(shr16(low, from), mask), shr16(low, from + 8)];
                if from + f.low < 8 {
                    pairs[1] = and(pairs[1], mask);
                }
                if f.high > 0 {
                    let (together, from) = (8 / f.high, line % (8 / f.high) * f.high);
                    // SAFETY: as above.
                    let high = unsafe { load(at.add(f.high_at() + line / together * 64 + half * 32)) };
                    let mask = splat16((0xff >> (8 - f.high)) << f.low);
                    for (odd, pair) in pairs.iter_mut().enumerate() {
                        let from = from + odd * 8;
                        let high =
                            if from > f.low { shr16(high, from - f.low) } else { shl16(high, f.low - from) };
                        *pair = or(*pair, and(high, mask));
                    }
                }
                pairs
            }

            /// The numbers at `at` of a sub-block, times `d` if they are integers.
            ///
            /// # Safety
            /// Both must point at numbers of layout `L`.
            #[inline]
            #[$features]
            unsafe fn numbers<L: Layout>(at: *const u8, d: *const u8, half: usize) -> Floats {
                // SAFETY: the numbers of vector `half`, within the block.
                unsafe {
                    match L::FORMAT.scales {
                        Scales::F16 => load_f16_as_f32(at.add(half * 16)),
                        Scales::Bf16 => load_bf16_as_f32(at.add(half * 16)),
                        Scales::Integers => {
                            mul(load_i8_as_f32(at.add(half * 8)), load_f16_as_f32(d.add(half * 16)))
                        }
                    }
                }
            }

            /// The scales of sub-block `sub` of a block.
            ///
            /// # Safety
            /// The block must be of layout `L`.
            #[inline]
            #[$features]
            pub(crate) unsafe fn scales<L: Layout>(block: BlockPtr, half: usize, sub: usize) -> Floats {
                // SAFETY: the offsets are those of the layout.
                unsafe { numbers::<L>(block.at.add(sub * L::FORMAT.scale_bytes()), block.d, half) }
            }

            /// The mins of sub-block `sub` of a block.
            ///
            /// # Safety
            /// The block must be of layout `L`, which must have mins.
            #[inline]
            #[$features]
            pub(crate) unsafe fn mins<L: Layout>(block: BlockPtr, half: usize, sub: usize) -> Floats {
                // SAFETY: the offsets are those of the layout.
                unsafe {
                    let at = block.at.add(L::FORMAT.mins_at() + sub * L::FORMAT.scale_bytes());
                    numbers::<L>(at, block.d.wrapping_add(32), half)
                }
            }
        }
    };
}

unpacking!(portable, allow(clippy::missing_safety_doc));
#[cfg(target_arch = "x86_64")]
unpacking!(v512, target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
#[cfg(target_arch = "x86_64")]
unpacking!(v256, target_feature(enable = "avx2,fma,f16c"));
