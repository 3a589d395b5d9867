//! Storage formats of block-quantized weights, one `Format` per GGUF type, and their layout in a
//! panel. No format loses anything of the stored values.
//!
//! `weight = scale * (value(code) - zero_point) + min`, with one scale (and min) per sub-block of 16
//! or 32 inputs. A panel holds 16 outputs, block after block of 32 inputs:
//!
//! | part of a block | bytes |
//! |---|--:|
//! | scales, per sub-block and output | 2 (16-bit float), or 1 (factor of the superblock's d) |
//! | mins, as the scales | |
//! | low bits of the codes, 2, 4 or 8 each | 64 per line |
//! | high bits of the codes, 0, 1 or 2 each | 64 per line |
//!
//! The K types and IQ4_XS have d (and dmin) before each superblock of 8 blocks. The last superblock
//! of a panel may have fewer. `unpack.rs` documents the code lines.

use crate::isa::tile::LANES;
use kvasir_formats::DType;

/// Inputs per block.
pub(crate) const BLOCK: usize = 32;
/// Blocks per superblock, which share one d.
pub(crate) const BLOCKS_PER_SUPERBLOCK: usize = 8;
/// Inputs per superblock.
pub(crate) const SUPERBLOCK: usize = BLOCK * BLOCKS_PER_SUPERBLOCK;
/// Code lines per block: four inputs of all 16 outputs each.
pub(crate) const LINES: usize = BLOCK / 4;

/// How a code maps to an unsigned value, from which the zero point is subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// The code itself.
    Code,
    /// A doubled E2M1 float plus the zero point.
    E2m1,
    /// An entry of the IQ4 non-linear table plus the zero point.
    Iq4,
}

/// How scales and mins are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// f16 per block.
    F16,
    /// bf16 per block: powers of two beyond the range of f16.
    Bf16,
    /// Integers per sub-block, times the superblock's d or dmin in f16.
    Integers,
}

/// Code width, arithmetic and layout of a block-quantized type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Low bits of a code, stored together: 2, 4 or 8.
    pub(crate) low: usize,
    /// High bits of a code, stored apart: 0, 1 or 2.
    pub(crate) high: usize,
    pub(crate) values: Values,
    /// What is subtracted from a value: a power of two, or 0 if there are mins.
    pub(crate) zero_point: i32,
    pub(crate) scales: Scales,
    /// Inputs per scale: 16 or 32.
    pub(crate) sub: usize,
    pub(crate) has_min: bool,
}

impl Format {
    pub(crate) const Q4_0: Self = Self::legacy(4, 0, 8);
    pub(crate) const Q4_1: Self = Self::legacy(4, 0, 0);
    pub(crate) const Q5_0: Self = Self::legacy(4, 1, 16);
    pub(crate) const Q5_1: Self = Self::legacy(4, 1, 0);
    pub(crate) const Q8_0: Self = Self::legacy(8, 0, 128);
    pub(crate) const Q2_K: Self = Self::k(2, 0, 16, 0);
    pub(crate) const Q3_K: Self = Self::k(2, 1, 16, 4);
    pub(crate) const Q4_K: Self = Self::k(4, 0, 32, 0);
    pub(crate) const Q5_K: Self = Self::k(4, 1, 32, 0);
    pub(crate) const Q6_K: Self = Self::k(4, 2, 16, 32);
    pub(crate) const MXFP4: Self = Self { scales: Scales::Bf16, ..Self::table(Values::E2m1) };
    pub(crate) const IQ4_NL: Self = Self::table(Values::Iq4);
    pub(crate) const IQ4_XS: Self = Self { scales: Scales::Integers, ..Self::IQ4_NL };

    /// A type with an f16 scale per block. A zero point of 0 means that it has mins.
    const fn legacy(low: usize, high: usize, zero_point: i32) -> Self {
        let (values, has_min) = (Values::Code, zero_point == 0);
        Self { low, high, values, zero_point, scales: Scales::F16, sub: BLOCK, has_min }
    }

    /// A K type: sub-blocks of `sub` inputs with integer scales.
    const fn k(low: usize, high: usize, sub: usize, zero_point: i32) -> Self {
        Self { scales: Scales::Integers, sub, ..Self::legacy(low, high, zero_point) }
    }

    /// A type whose 4-bit codes are looked up in a table of signed bytes.
    const fn table(values: Values) -> Self {
        Self { values, ..Self::legacy(4, 0, 128) }
    }

    /// The format of an encoding, if it is block-quantized integers.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::Q4_0 => Self::Q4_0,
            DType::Q4_1 => Self::Q4_1,
            DType::Q5_0 => Self::Q5_0,
            DType::Q5_1 => Self::Q5_1,
            DType::Q8_0 => Self::Q8_0,
            DType::Q2K => Self::Q2_K,
            DType::Q3K => Self::Q3_K,
            DType::Q4K => Self::Q4_K,
            DType::Q5K => Self::Q5_K,
            DType::Q6K => Self::Q6_K,
            DType::Mxfp4 => Self::MXFP4,
            DType::Iq4Nl => Self::IQ4_NL,
            DType::Iq4Xs => Self::IQ4_XS,
            DType::F32
            | DType::F16
            | DType::BF16
            | DType::F64
            | DType::F8E4M3
            | DType::F8E8M0
            | DType::U8
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::Bool => return None,
        })
    }

    /// Bits of a code.
    pub(crate) const fn bits(self) -> usize {
        self.low + self.high
    }

    /// Sub-blocks per block.
    pub(crate) const fn subs(self) -> usize {
        BLOCK / self.sub
    }

    /// Bytes of d (and dmin) before each superblock.
    pub(crate) const fn d_bytes(self) -> usize {
        match self.scales {
            Scales::F16 | Scales::Bf16 => 0,
            Scales::Integers => LANES * 2 * (1 + self.has_min as usize),
        }
    }

    /// Bytes of the scales (or mins) of one sub-block.
    pub(crate) const fn scale_bytes(self) -> usize {
        match self.scales {
            Scales::F16 | Scales::Bf16 => LANES * 2,
            Scales::Integers => LANES,
        }
    }

    /// Offset of the mins within a block, after the scales.
    pub(crate) const fn mins_at(self) -> usize {
        self.subs() * self.scale_bytes()
    }

    /// Offset of the low bits of the codes within a block.
    pub(crate) const fn codes_at(self) -> usize {
        self.mins_at() * (1 + self.has_min as usize)
    }

    /// Offset of the high bits of the codes within a block.
    pub(crate) const fn high_at(self) -> usize {
        self.codes_at() + BLOCK * LANES * self.low / 8
    }

    /// Bytes of a block.
    pub(crate) const fn block_bytes(self) -> usize {
        self.high_at() + BLOCK * LANES * self.high / 8
    }

    /// Bytes of a whole superblock.
    pub(crate) const fn superblock_bytes(self) -> usize {
        self.d_bytes() + BLOCKS_PER_SUPERBLOCK * self.block_bytes()
    }

    /// Bytes of a panel of `blocks` blocks.
    pub(crate) const fn panel_bytes(self, blocks: usize) -> usize {
        blocks.div_ceil(BLOCKS_PER_SUPERBLOCK) * self.d_bytes() + blocks * self.block_bytes()
    }
}
