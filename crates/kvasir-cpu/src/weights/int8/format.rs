//! Storage formats of block-quantized weights: one `Format` per GGUF type, plus MXFP4 and 16-bit
//! weights.
//!
//! A superblock holds 256 inputs x 16 outputs as d, dmin, integer sub-block scales, mins and codes,
//! in this order. `Format` gives the offsets, the code values and the arithmetic that all kernels
//! share:
//!
//! `weight = d * factor * v + dmin * min`, with `v = (code * scale * multiplier + rounding) >> shift` in
//! int8.
//!
//! Source encodings with float scales per 32 weights get integer scales and a bf16 unit per
//! superblock when packed.

use crate::isa::tile::LANES;
use kvasir_formats::DType;
use kvasir_formats::encoding::{E2M1_DOUBLED, IQ4_VALUES};

/// Inputs per superblock; they share one f32 scale.
pub(crate) const SUPERBLOCK: usize = 256;

/// Matrices with fewer weights are kept in 16 bits: they cost no bandwidth, and small models suffer
/// most from rounding.
const SMALL: usize = 1 << 20;

/// How a code maps to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// An unsigned integer.
    Unsigned,
    /// A two's complement integer.
    Signed,
    /// An E2M1 float, doubled.
    E2m1,
    /// An entry of the IQ4 non-linear table.
    Iq4,
}

impl Codes {
    /// The integer value of a code of `bits` bits.
    pub(crate) const fn value(self, code: u8, bits: usize) -> i16 {
        match self {
            Self::Unsigned => code as i16,
            Self::Signed => ((code << (8 - bits)) as i8 >> (8 - bits)) as i16,
            Self::E2m1 => E2M1_DOUBLED[code as usize] as i16,
            Self::Iq4 => IQ4_VALUES[code as usize] as i16,
        }
    }
}

/// Layout and arithmetic of a superblock.
///
/// `weight = d * factor * v + dmin * min`: d and dmin are 16-bit floats per superblock and output;
/// scale and min are int8 per sub-block. `v` is int8: `code * scale * multiplier`, shifted right by
/// `shift` bits and rounded half up. 8-bit codes are stored as `v + 128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of a code: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    pub(crate) codes: Codes,
    /// Codes per sub-block: 16 or 32.
    pub(crate) sub: usize,
    pub(crate) has_min: bool,
    /// Factor on the scales, so that `v` uses the whole int8 range.
    pub(crate) multiplier: i16,
    /// d and dmin are bf16 (computed while packing), else f16 (as stored).
    pub(crate) bf16_d: bool,
    /// Superblocks per 256 weights of a row: two if the second holds the low bytes of 16-bit
    /// weights.
    pub(crate) planes: usize,
}

impl Format {
    pub(crate) const Q4_0: Self = Self::legacy(4, false);
    pub(crate) const Q4_1: Self = Self::legacy(4, true);
    pub(crate) const Q5_0: Self = Self::legacy(5, false);
    pub(crate) const Q5_1: Self = Self::legacy(5, true);
    pub(crate) const Q8_0: Self = Self::legacy(8, false);
    pub(crate) const Q2_K: Self = Self::k(4, 16, true, 16);
    // The smallest code times the smallest scale is +128, which does not fit int8; negated it does.
    pub(crate) const Q3_K: Self = Self::k(4, 16, false, -8);
    pub(crate) const Q4_K: Self = Self::k(4, 32, true, 2);
    pub(crate) const Q5_K: Self = Self::k(5, 32, true, 2);
    pub(crate) const Q6_K: Self = Self::k(6, 16, false, -1);

    /// Scales are powers of two; those within a factor of eight of the largest are exact.
    pub(crate) const MXFP4: Self = Self { codes: Codes::E2m1, multiplier: 2, ..Self::Q4_0 };

    pub(crate) const IQ4_NL: Self = Self { codes: Codes::Iq4, ..Self::Q4_0 };
    pub(crate) const IQ4_XS: Self = Self { codes: Codes::Iq4, ..Self::k(4, 32, false, 4) };

    /// 16-bit weights from any encoding: the rounded high byte, then the remainder in units of
    /// 1/256.
    pub(crate) const INT16: Self = Self { planes: 2, ..Self::Q8_0 };

    /// A type with blocks of 32 weights and float scales, which become integer scales with a bf16
    /// unit.
    const fn legacy(bits: usize, has_min: bool) -> Self {
        Self { bf16_d: true, ..Self::k(bits, 32, has_min, 1) }
    }

    /// A K type: sub-blocks of `sub` weights with integer scales; codes are signed if there are no
    /// mins.
    const fn k(bits: usize, sub: usize, has_min: bool, multiplier: i16) -> Self {
        let codes = if has_min { Codes::Unsigned } else { Codes::Signed };
        Self { bits, codes, sub, has_min, multiplier, bf16_d: false, planes: 1 }
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

    /// The format for a matrix of `weights` weights; small matrices get 16 bits. `None` for float
    /// encodings.
    pub(crate) fn for_matrix(dtype: DType, weights: usize) -> Option<Self> {
        let format = Self::of(dtype)?;
        Some(if weights < SMALL { Self::INT16 } else { format })
    }

    /// Whether weights are unpacked to int8 at packing time.
    pub(crate) const fn stores_unpacked(self) -> bool {
        self.bits == 8
    }

    /// Right shift of `code * scale * multiplier`. Unsigned codes leave room for a sign, doubled E2M1
    /// has five bits, and weights unpacked at packing time have 16-bit scales.
    pub(crate) const fn shift(self) -> usize {
        if self.planes > 1 {
            0
        } else if self.stores_unpacked() {
            15
        } else {
            match self.codes {
                Codes::Unsigned | Codes::E2m1 => self.bits,
                Codes::Signed => self.bits - 1,
                Codes::Iq4 => 7,
            }
        }
    }

    /// Offset that makes weights unsigned for dot products of unsigned and signed bytes; 0 if
    /// weights are never negative.
    pub(crate) const fn zero_point(self) -> i32 {
        // K types with mins have unsigned integer scales.
        if self.has_min && !self.bf16_d { 0 } else { 128 }
    }

    /// Whether a vector of codes holds many inputs of a few outputs, unpacked by a lookup table per
    /// output. Otherwise it holds a few inputs of all outputs, and 6-bit codes are multiplied by
    /// their scales in 16 bits.
    pub(crate) const fn by_output(self) -> bool {
        self.bits < 6
    }

    /// Lookup values of codes stored [by output](Self::by_output), pre-shifted: the rounding high
    /// multiply (`pmulhrsw`) with a scale in the high byte of a 16-bit lane yields `v`.
    pub(crate) const fn values(self) -> [[i16; 8]; 4] {
        let mut all = [[0; 8]; 4];
        let codes = if self.by_output() { 1 << self.bits } else { 0 };
        let mut code = 0;
        while code < codes {
            let value = self.codes.value(code as u8, self.bits);
            all[code as usize / 8][code as usize % 8] = (value * self.multiplier) << (7 - self.shift());
            code += 1;
        }
        all
    }

    /// `2^shift / multiplier`: undoes the shift and `multiplier`.
    pub(crate) const fn factor(self) -> f32 {
        (1 << self.shift()) as f32 / self.multiplier as f32
    }

    /// Sub-blocks per superblock.
    pub(crate) const fn subs(self) -> usize {
        SUPERBLOCK / self.sub
    }

    /// Byte offset of the integer scales, after d and dmin.
    pub(crate) const fn scales_at(self) -> usize {
        LANES * 2 * (1 + self.has_min as usize)
    }

    /// Byte offset of the mins.
    pub(crate) const fn mins_at(self) -> usize {
        self.scales_at() + if self.stores_unpacked() { 0 } else { self.subs() * LANES }
    }

    /// Byte offset of the codes: the low four bits, all six, or all eight bits of `v`.
    pub(crate) const fn codes_at(self) -> usize {
        self.mins_at() + if self.has_min { self.subs() * LANES } else { 0 }
    }

    /// Byte offset of the fifth bits of 5-bit codes.
    pub(crate) const fn high_at(self) -> usize {
        let together = if self.bits == 5 { 4 } else { self.bits };
        self.codes_at() + SUPERBLOCK * LANES * together / 8
    }

    /// Bytes of one superblock of a panel.
    pub(crate) const fn bytes(self) -> usize {
        self.high_at() + if self.bits == 5 { SUPERBLOCK * LANES / 8 } else { 0 }
    }
}
