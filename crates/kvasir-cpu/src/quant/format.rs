use crate::tile::LANES;
use kvasir_formats::DType;
use kvasir_formats::encoding::{E2M1_DOUBLED, IQ4_VALUES};

/// Weights that are multiplied as one superblock, and share one float scale.
pub(crate) const SUPER: usize = 256;

/// Matrices of fewer weights are kept in 16 bits: no step waits for them, and small models mind rounding most.
const SMALL: usize = 1 << 20;

/// What a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codes {
    /// Itself.
    Unsigned,
    /// Itself, in two's complement.
    Signed,
    /// A float of four bits, doubled.
    Floats,
    /// A value of eight bits out of a table.
    Curve,
}

impl Codes {
    /// Of a code of so many bits.
    pub(crate) const fn value(self, code: u8, bits: usize) -> i16 {
        match self {
            Self::Unsigned => code as i16,
            Self::Signed => ((code << (8 - bits)) as i8 >> (8 - bits)) as i16,
            Self::Floats => E2M1_DOUBLED[code as usize] as i16,
            Self::Curve => IQ4_VALUES[code as usize] as i16,
        }
    }
}

/// How superblocks of one encoding are laid out in a panel.
///
/// A weight is `d * factor * v + dmin * min`, with d and dmin per superblock, scale and min integers of a byte per sub-block, and v one signed byte:
/// `code * scale * times`, shifted right by `shift` bits and rounded, halves up. Where codes have eight bits, v itself is stored, plus 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of a code: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    pub(crate) codes: Codes,
    /// Codes that share a sub-block: 16 or 32.
    pub(crate) sub: usize,
    pub(crate) has_min: bool,
    /// What scales are multiplied with, so that v uses its eight bits.
    pub(crate) times: i16,
    /// d and dmin are bf16 (made while packing), else f16 (as stored).
    pub(crate) wide_d: bool,
    /// Superblocks for 256 weights of a row: two where the second has what bytes of the first leave over.
    pub(crate) planes: usize,
}

impl Format {
    pub(crate) const Q4_0: Self = Self::legacy(4, false);
    pub(crate) const Q4_1: Self = Self::legacy(4, true);
    pub(crate) const Q5_0: Self = Self::legacy(5, false);
    pub(crate) const Q5_1: Self = Self::legacy(5, true);
    pub(crate) const Q8_0: Self = Self::legacy(8, false);
    pub(crate) const Q2_K: Self = Self::k(4, 16, true, 16);
    // The least code times the least scale is one more than a byte holds: negated it fits.
    pub(crate) const Q3_K: Self = Self::k(4, 16, false, -8);
    pub(crate) const Q4_K: Self = Self::k(4, 32, true, 2);
    pub(crate) const Q5_K: Self = Self::k(5, 32, true, 2);
    pub(crate) const Q6_K: Self = Self::k(6, 16, false, -1);

    /// Scales are powers of two: those of the three below the largest leave nothing to round.
    pub(crate) const MXFP4: Self = Self { codes: Codes::Floats, times: 2, ..Self::Q4_0 };

    pub(crate) const IQ4_NL: Self = Self { codes: Codes::Curve, ..Self::Q4_0 };
    pub(crate) const IQ4_XS: Self = Self { codes: Codes::Curve, ..Self::k(4, 32, false, 4) };

    /// Weights of any encoding as 16 bits: the high byte rounded, then what that left over, in a 256th of its unit.
    pub(crate) const FINE: Self = Self { planes: 2, ..Self::Q8_0 };

    const fn legacy(bits: usize, has_min: bool) -> Self {
        Self { wide_d: true, ..Self::k(bits, 32, has_min, 1) }
    }

    const fn k(bits: usize, sub: usize, has_min: bool, times: i16) -> Self {
        let codes = if has_min { Codes::Unsigned } else { Codes::Signed };
        Self { bits, codes, sub, has_min, times, wide_d: false, planes: 1 }
    }

    /// The layout for an encoding, if it is one of integers in blocks.
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
            _ => return None,
        })
    }

    /// The layout for a matrix of so many weights in an encoding, if it is one of integers in blocks.
    pub(crate) fn for_matrix(dtype: DType, weights: usize) -> Option<Self> {
        let format = Self::of(dtype)?;
        Some(if weights < SMALL { Self::FINE } else { format })
    }

    /// Whether weights are opened when they are packed.
    pub(crate) const fn is_open(self) -> bool {
        self.bits == 8
    }

    /// Bits by which a product is shifted: an unsigned code leaves room for a sign, a doubled float has five bits. What is opened early has scales of 16 bits.
    pub(crate) const fn shift(self) -> usize {
        if self.planes > 1 {
            0
        } else if self.is_open() {
            15
        } else {
            match self.codes {
                Codes::Unsigned | Codes::Floats => self.bits,
                Codes::Signed => self.bits - 1,
                Codes::Curve => 7,
            }
        }
    }

    /// What is added to weights where bytes are multiplied and one operand is unsigned: nothing where no weight is negative.
    pub(crate) const fn lift(self) -> i32 {
        // Scales of K types with mins are integers without signs.
        if self.has_min && !self.wide_d { 0 } else { 128 }
    }

    /// Whether a vector of codes has inputs of a few outputs, each of which opens them by a table of its own; otherwise a few inputs of all outputs, of
    /// which codes of six bits are multiplied by their scales in 16.
    pub(crate) const fn by_output(self) -> bool {
        self.bits < 6
    }

    /// What codes that lie [by output](Self::by_output) stand for, moved so that the rounded high half of twice their product with a scale in the high byte of
    /// 16 bits is the one that is shifted as it should be.
    pub(crate) const fn values(self) -> [[i16; 8]; 4] {
        let mut all = [[0; 8]; 4];
        let codes = if self.by_output() { 1 << self.bits } else { 0 };
        let mut code = 0;
        while code < codes {
            let value = self.codes.value(code as u8, self.bits);
            all[code as usize / 8][code as usize % 8] = (value * self.times) << (7 - self.shift());
            code += 1;
        }
        all
    }

    /// What makes up for the shift.
    pub(crate) const fn factor(self) -> f32 {
        (1 << self.shift()) as f32 / self.times as f32
    }

    pub(crate) const fn subs(self) -> usize {
        SUPER / self.sub
    }

    /// Where the integer scales begin: after d and dmin.
    pub(crate) const fn scales_at(self) -> usize {
        LANES * 2 * (1 + self.has_min as usize)
    }

    pub(crate) const fn mins_at(self) -> usize {
        self.scales_at() + if self.is_open() { 0 } else { self.subs() * LANES }
    }

    /// Where the codes begin: their low four bits, all six, or all eight of v.
    pub(crate) const fn codes_at(self) -> usize {
        self.mins_at() + if self.has_min { self.subs() * LANES } else { 0 }
    }

    /// Where the fifth bits begin, if there are some.
    pub(crate) const fn high_at(self) -> usize {
        let together = if self.bits == 5 { 4 } else { self.bits };
        self.codes_at() + SUPER * LANES * together / 8
    }

    /// Bytes of one superblock of a panel.
    pub(crate) const fn bytes(self) -> usize {
        self.high_at() + if self.bits == 5 { SUPER * LANES / 8 } else { 0 }
    }
}
