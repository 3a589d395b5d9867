use kvasir_formats::DType;

/// Weights that are multiplied as one superblock, and share one float scale.
pub(crate) const SUPER: usize = 256;
/// Outputs of a panel: the lanes of a vector, the columns of a tile.
pub(crate) const LANES: usize = 16;

/// How a sub-block's integer scale is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubScale {
    U8,
    I8,
    I16,
}

/// How superblocks of one encoding are laid out in a panel.
///
/// A weight is `d * scale * (code - bias) + dmin * min`, with d and dmin per superblock, scale and min small integers per sub-block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits of a code: 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Codes that share a sub-block: 16 or 32.
    pub(crate) sub: usize,
    pub(crate) scale: SubScale,
    pub(crate) has_min: bool,
    pub(crate) bias: i32,
    /// d and dmin are bf16 (made while packing), else f16 (as stored).
    pub(crate) wide_d: bool,
}

impl Format {
    /// The layout for an encoding, if it is one of integers in blocks.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        let legacy =
            |bits, has_min, bias| Self { bits, sub: 32, scale: SubScale::I16, has_min, bias, wide_d: true };
        let k = |bits, sub, scale, has_min, bias| Self { bits, sub, scale, has_min, bias, wide_d: false };
        Some(match dtype {
            DType::Q4_0 => legacy(4, false, 8),
            DType::Q4_1 => legacy(4, true, 0),
            DType::Q5_0 => legacy(5, false, 16),
            DType::Q5_1 => legacy(5, true, 0),
            DType::Q8_0 => Self { scale: SubScale::U8, ..legacy(8, false, 128) },
            DType::Q2K => k(4, 16, SubScale::U8, true, 0),
            DType::Q3K => k(4, 16, SubScale::I8, false, 4),
            DType::Q4K => k(4, 32, SubScale::U8, true, 0),
            DType::Q5K => k(5, 32, SubScale::U8, true, 0),
            DType::Q6K => k(6, 16, SubScale::I8, false, 32),
            _ => return None,
        })
    }

    pub(crate) const fn subs(self) -> usize {
        SUPER / self.sub
    }

    pub(crate) const fn scale_bytes(self) -> usize {
        if matches!(self.scale, SubScale::I16) { 2 } else { 1 }
    }

    /// Where the integer scales begin: after d and dmin.
    pub(crate) const fn scales_at(self) -> usize {
        LANES * 2 * (1 + self.has_min as usize)
    }

    pub(crate) const fn mins_at(self) -> usize {
        self.scales_at() + self.subs() * LANES * self.scale_bytes()
    }

    /// Where the codes begin: their low four bits, or all eight.
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
