//! Tensor element types, including GGUF block quantization: names, GGUF ids, block lengths and byte
//! sizes.
//!
//! One line per type. Size computations check for overflow.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// Name, GGUF type id (if any), elements per block, bytes per block.
type Row = (&'static str, Option<u32>, usize, usize);

/// Declares the enum and its table from one list, so that no type lacks a row.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident: $text:literal, $gguf:expr, $len:literal, $bytes:literal;)*) => {
        /// Storage type of a tensor's elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs)] // names as in the file formats
        pub enum DType {
            $($(#[$doc])* $name,)*
        }

        const ALL: &[DType] = &[$(DType::$name),*];
        const TABLE: &[Row] = &[$(($text, $gguf, $len, $bytes)),*];
    };
}

dtypes! {
    F32: "f32", Some(0), 1, 4;
    F16: "f16", Some(1), 1, 2;
    BF16: "bf16", Some(30), 1, 2;
    F64: "f64", Some(28), 1, 8;
    /// FP8 with 4 exponent bits; block-scaled matrices store scales in a companion tensor.
    F8E4M3: "f8_e4m3", None, 1, 1;
    /// E8M0: a power of two, used for scales.
    F8E8M0: "f8_e8m0", None, 1, 1;
    U8: "u8", None, 1, 1;
    I8: "i8", Some(24), 1, 1;
    I16: "i16", Some(25), 1, 2;
    I32: "i32", Some(26), 1, 4;
    I64: "i64", Some(27), 1, 8;
    Bool: "bool", None, 1, 1;
    Q8_0: "q8_0", Some(8), 32, 34;
    Q4_0: "q4_0", Some(2), 32, 18;
    Q4_1: "q4_1", Some(3), 32, 20;
    Q5_0: "q5_0", Some(6), 32, 22;
    Q5_1: "q5_1", Some(7), 32, 24;
    Q2K: "q2_k", Some(10), 256, 84;
    Q3K: "q3_k", Some(11), 256, 110;
    Q4K: "q4_k", Some(12), 256, 144;
    Q5K: "q5_k", Some(13), 256, 176;
    Q6K: "q6_k", Some(14), 256, 210;
    /// MXFP4 in GGUF layout: 32 four-bit floats and one power-of-two scale.
    Mxfp4: "mxfp4", Some(39), 32, 17;
    /// 32 four-bit indices into a nonlinear codebook, with one f16 scale.
    Iq4Nl: "iq4_nl", Some(20), 32, 18;
    /// Superblock of 256 four-bit codebook indices, with a six-bit scale per 32.
    Iq4Xs: "iq4_xs", Some(23), 256, 136;
}

impl DType {
    /// All types, in table order.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        ALL.iter().copied()
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Lower-case name, as used on the command line.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Parses a type name, ignoring case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// Type id in GGUF files, if GGUF has the type.
    pub fn gguf_id(self) -> Option<u32> {
        self.row().1
    }

    /// The type of a GGUF type id.
    pub fn from_gguf_id(id: u32) -> Option<Self> {
        Self::all().find(|dtype| dtype.gguf_id() == Some(id))
    }

    /// Elements per block; 1 for unquantized types.
    pub fn block_len(self) -> usize {
        self.row().2
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// Whether matrices of a model are stored in this type, in GGUF or after conversion.
    pub fn is_weight(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16) || self.is_quantized()
    }

    /// Whether a block holds more than one element.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `len` elements. Fails unless `len` is a multiple of the block length.
    pub fn row_bytes(self, len: usize) -> Result<usize> {
        let block = self.block_len();
        if !len.is_multiple_of(block) {
            return Err(Error::at(
                "",
                format!("a row of {len} elements is not a multiple of the block length {block} ({self})"),
            ));
        }
        (len / block).checked_mul(self.block_bytes()).ok_or_else(|| too_large(len))
    }

    /// Bytes of a tensor, with `shape` slowest dimension first. Fails on overflow or partial
    /// blocks.
    pub fn tensor_bytes(self, shape: &[usize]) -> Result<usize> {
        let Some((&last, outer)) = shape.split_last() else {
            return self.row_bytes(1);
        };
        let row = self.row_bytes(last)?;
        outer.iter().try_fold(row, |n, &d| n.checked_mul(d)).ok_or_else(|| too_large(last))
    }
}

fn too_large(len: usize) -> Error {
    Error::at("", format!("the size overflows (row of {len})"))
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_gguf_ids_are_unique() {
        for dtype in DType::all() {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert!(dtype.gguf_id().is_none_or(|id| DType::from_gguf_id(id) == Some(dtype)), "{dtype}");
        }
    }

    #[test]
    fn sizes_are_whole_blocks_and_do_not_wrap() {
        assert_eq!(DType::Q4K.tensor_bytes(&[3, 512]).unwrap(), 3 * 2 * 144);
        assert_eq!(DType::F32.tensor_bytes(&[]).unwrap(), 4);
        assert!(DType::Q8_0.tensor_bytes(&[2, 33]).is_err());
        assert!(DType::F32.tensor_bytes(&[usize::MAX, 2]).is_err());
    }
}
