use kvasir_formats::DType;

/// Weights that are multiplied as one superblock, and share one float scale.
pub(crate) const SUPER: usize = 256;
/// Outputs of a panel: the lanes of a vector, the columns of a tile.
pub(crate) const LANES: usize = 16;

/// How superblocks of one encoding are laid out in a panel.
///
/// A weight is `d * factor * v + dmin * min`, with d and dmin per superblock, scale and min integers of a byte per sub-block, and v one signed byte:
/// `code * scale * times`, shifted right by `shift` bits and rounded, halves up. Where codes have eight bits, v itself is stored, plus 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of a code: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Whether codes are signed, in two's complement.
    pub(crate) signed: bool,
    /// Codes that share a sub-block: 16 or 32.
    pub(crate) sub: usize,
    pub(crate) has_min: bool,
    /// What scales are multiplied with, so that v uses its eight bits.
    pub(crate) times: i16,
    /// d and dmin are bf16 (made while packing), else f16 (as stored).
    pub(crate) wide_d: bool,
}

impl Format {
    /// The layout for an encoding, if it is one of integers in blocks.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        let legacy =
            |bits, has_min: bool| Self { bits, signed: !has_min, sub: 32, has_min, times: 1, wide_d: true };
        let k = |bits, sub, has_min: bool, times| Self {
            bits,
            signed: !has_min,
            sub,
            has_min,
            times,
            wide_d: false,
        };
        Some(match dtype {
            DType::Q4_0 => legacy(4, false),
            DType::Q4_1 => legacy(4, true),
            DType::Q5_0 => legacy(5, false),
            DType::Q5_1 => legacy(5, true),
            DType::Q8_0 => legacy(8, false),
            DType::Q2K => k(4, 16, true, 16),
            // The least code times the least scale is one more than a byte holds: negated it fits.
            DType::Q3K => k(4, 16, false, -8),
            DType::Q4K => k(4, 32, true, 2),
            DType::Q5K => k(5, 32, true, 2),
            DType::Q6K => k(6, 16, false, -1),
            _ => return None,
        })
    }

    /// Whether weights are opened when they are packed.
    pub(crate) const fn is_open(self) -> bool {
        self.bits == 8
    }

    /// Bits by which a product is shifted: an unsigned code leaves room for a sign. What is opened early has scales of 16 bits.
    pub(crate) const fn shift(self) -> usize {
        if self.is_open() { 15 } else { self.bits - self.signed as usize }
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

    /// Where the codes begin: their low four bits, or all eight of v.
    pub(crate) const fn codes_at(self) -> usize {
        self.mins_at() + if self.has_min { self.subs() * LANES } else { 0 }
    }

    /// Where the bits above the low four begin.
    pub(crate) const fn high_at(self) -> usize {
        self.codes_at() + if self.bits == 8 { SUPER * LANES } else { SUPER * LANES / 2 }
    }

    /// Bytes of one superblock of a panel.
    pub(crate) const fn bytes(self) -> usize {
        let high_bits = if self.bits == 8 { 0 } else { self.bits - 4 };
        self.high_at() + SUPER * LANES * high_bits / 8
    }
}
