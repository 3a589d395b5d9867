//! Dequantizes panels to bf16 tiles, for instruction sets with bf16 tile products.
//!
//! `w = bf16(fma(value, scale, offset))`, rounded to f32 and then to bf16, where `offset` is the min,
//! or `-zero_point * scale`. A block of 32 inputs is one tile in VNNI layout: 16 rows of input pairs.

use crate::isa::features::Isa;
use crate::isa::tile::{LANES, STEP};
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::weights::bf16::{TILE_BYTES, TileLayout, TileScratch};
use crate::weights::panels::PanelReader;
use crate::weights::quant::format::{BLOCK, LINES};
use crate::weights::quant::layouts::{Layout, with_layout};
use crate::weights::quant::panels::BlockLayout;
use crate::weights::quant::unpack::BlockPtr;

// A block is a tile.
const _: () = assert!(BLOCK == STEP);

impl TileLayout for BlockLayout {
    fn steps(&self) -> usize {
        self.blocks
    }

    fn tiles<'p>(reader: &'p PanelReader<'_, '_, Self>, n: usize, scratch: &'p mut TileScratch) -> &'p [u8] {
        let kind = &reader.panels.kind;
        let len = kind.blocks * TILE_BYTES;
        scratch.tiles.grow(len);
        let panel = reader.panel(n, &mut scratch.panel);
        let tiles = &mut scratch.tiles[..len];
        with_layout!(kind.format, L => dequantize::<L>(Isa::detect(), panel, tiles));
        tiles
    }
}

/// Dequantizes the blocks of a panel of layout `L`, as many as there are tiles.
fn dequantize<L: Layout>(isa: Isa, panel: &[u8], tiles: &mut [u8]) {
    let blocks = tiles.len() / TILE_BYTES;
    assert!(panel.len() >= L::FORMAT.panel_bytes(blocks), "the panel has the blocks");
    // SAFETY: the instruction set was detected on this machine; the panel has the layout's blocks.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() && isa.int_dot {
            return v512::panel::<L>(panel.as_ptr(), tiles);
        } else if isa.has_avx2() {
            return v256::panel::<L>(panel.as_ptr(), tiles);
        }
        let _ = isa;
        portable::panel::<L>(panel.as_ptr(), tiles);
    }
}

macro_rules! kernels {
    ($vectors:ident, $features:meta) => {
        mod $vectors {
            use super::*;
            use crate::isa::int_vectors::$vectors::*;
            use crate::weights::quant::unpack::$vectors::{line, mins, scales};

            /// Two values per output as a pair of bf16, rounded to nearest with ties away from zero.
            #[inline]
            #[$features]
            fn pair(values: [Ints; 2], scale: Floats, offset: Floats) -> Ints {
                let rounding = splat32(0x8000);
                let first = add32(to_bits(fma(to_f32(values[0]), scale, offset)), rounding);
                let second = add32(to_bits(fma(to_f32(values[1]), scale, offset)), rounding);
                or(shr32(first, 16), and(second, splat32(0xffff_0000_u32 as i32)))
            }

            /// # Safety
            /// The CPU must support the target features, and `panel` must hold a block of layout
            /// `L` for each tile.
            #[$features]
            pub(crate) unsafe fn panel<L: Layout>(panel: *const u8, tiles: &mut [u8]) {
                let f = L::FORMAT;
                for (i, tile) in tiles.as_chunks_mut::<TILE_BYTES>().0.iter_mut().enumerate() {
                    let block = BlockPtr::of::<L>(panel, i);
                    // Prefetches the same block of the next superblock.
                    for at in (0..f.block_bytes()).step_by(64) {
                        prefetch_line(CacheLevel::L2, block.at.wrapping_add(f.superblock_bytes() + at));
                    }
                    for half in 0..VECTORS {
                        for sub in 0..f.subs() {
                            // SAFETY: a block of the caller's panel; two rows of the tile per line.
                            unsafe {
                                let scale = scales::<L>(block, half, sub);
                                let offset = if f.has_min {
                                    mins::<L>(block, half, sub)
                                } else {
                                    mul(scale, splat_floats(-f.zero_point as f32))
                                };
                                for n in sub * LINES / f.subs()..(sub + 1) * LINES / f.subs() {
                                    let [even, odd] = line::<L>(block.at, half, n);
                                    let low = splat32(0xffff);
                                    let first = [and(even, low), and(odd, low)];
                                    let second = [shr32(even, 16), shr32(odd, 16)];
                                    let at = tile.as_mut_ptr().add(n * 2 * LANES * 4 + half * 32);
                                    store(at, pair(first, scale, offset));
                                    store(at.add(LANES * 4), pair(second, scale, offset));
                                }
                            }
                        }
                    }
                }
            }
        }
    };
}

kernels!(portable, allow(unused_mut));
#[cfg(target_arch = "x86_64")]
kernels!(v512, target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"));
#[cfg(target_arch = "x86_64")]
kernels!(v256, target_feature(enable = "avx2,fma,f16c"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;
    use crate::weights::quant::format::Format;
    use kvasir_formats::DType;
    use kvasir_testkit::Random;

    #[test]
    fn tiles_have_the_same_bits_on_every_isa() {
        // One whole superblock, and part of another.
        let blocks = 11;
        for format in DType::all().filter_map(Format::of) {
            let mut random = Random::new(9);
            // Finite 16-bit floats: the highest exponent bits stay clear.
            let panel: Vec<u8> =
                (0..format.panel_bytes(blocks)).map(|_| random.bits() as u8 & 0x3f).collect();
            let tiles = |isa| {
                let mut tiles = vec![0; blocks * TILE_BYTES];
                with_layout!(format, L => dequantize::<L>(isa, &panel, &mut tiles));
                tiles
            };
            let reference = tiles(Isa::PORTABLE);
            for isa in isas() {
                assert!(tiles(isa) == reference, "{format:?} {isa}");
            }
        }
    }
}
