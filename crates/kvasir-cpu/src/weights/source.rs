//! `WeightSource`: where a model's weights come from, by name. Implemented by checkpoints and by
//! random weights.
//!
//! A source gives encoded rows (read in place or packed), FP8 and MXFP4 codes with separate scales,
//! or dequantized f32. It must not know about panels or kernels.

use kvasir_formats::{DType, Error, encoding};
use std::ops::Range;

/// A source shared by several models and threads.
pub(crate) type Source = dyn WeightSource + Send + Sync;

/// A weight with randomly accessible encoded rows.
pub struct Stored<'a> {
    /// Encoding of the rows.
    pub dtype: DType,
    /// Elements of a row.
    pub row_len: usize,
    /// Number of rows: the product of all leading dimensions.
    pub rows: usize,
    /// The encoded bytes of row `n`; empty if there is no such row.
    pub row: Box<dyn Fn(usize) -> &'a [u8] + Sync + 'a>,
}

/// An FP8 (E4M3) weight with block scales in another tensor.
pub struct Scaled<'a> {
    /// The FP8 codes.
    pub codes: Stored<'a>,
    /// Block size: rows and elements of a row that share a scale.
    pub block: (usize, usize),
    /// Scales in row-major order of blocks.
    pub scales: Vec<f32>,
}

impl Scaled<'_> {
    /// The scale of one element.
    pub fn scale(&self, row: usize, element: usize) -> f32 {
        let across = self.codes.row_len.div_ceil(self.block.1);
        self.scales[row / self.block.0 * across + element / self.block.1]
    }
}

/// Returns a row's codes and scale bytes. Of two codes in a byte the earlier one is in the lower
/// half. Both slices are empty if there is no such row.
pub type NibbleRow<'a> = dyn Fn(usize) -> (&'a [u8], &'a [u8]) + Sync + 'a;

/// An MXFP4 weight: E2M1 codes, one power-of-two scale per 32 elements.
pub struct Nibbles<'a> {
    /// Elements of a row.
    pub row_len: usize,
    /// Codes and scales of row `n`.
    pub row: Box<NibbleRow<'a>>,
}

/// A provider of model weights. Lookups are by tensor name; `shape` is what the program expects.
pub trait WeightSource: Sync {
    /// The encoded rows of a weight; `None` if it has none, or if its bytes need scales from
    /// another tensor.
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error>;
    /// An FP8 weight with its block scales; `None` if the weight is of another type.
    fn scaled<'a>(&'a self, _name: &'a str) -> Result<Option<Scaled<'a>>, Error> {
        Ok(None)
    }
    /// An MXFP4 weight whose scales are a separate tensor; `None` if the weight is of another type.
    fn nibbles<'a>(&'a self, _name: &'a str) -> Result<Option<Nibbles<'a>>, Error> {
        Ok(None)
    }
    /// The encoding of a weight's rows, including types with scales in another tensor; `None`
    /// without row access.
    fn dtype(&self, name: &str, shape: &[usize]) -> Result<Option<DType>, Error> {
        Ok(self.stored(name, shape)?.map(|stored| stored.dtype))
    }
    /// Dequantizes a whole weight to f32.
    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error>;
    /// Dequantizes row `n` into `out`. Fails if the weight has no row access.
    fn row(&self, name: &str, shape: &[usize], n: usize, out: &mut [f32]) -> Result<(), Error> {
        let none = || Error::at(format!("tensor {name}"), "cannot be read row by row");
        let stored = self.stored(name, shape)?.ok_or_else(none)?;
        encoding::dequantize(stored.dtype, (stored.row)(n), out)
    }
    /// Whether rows may be read repeatedly where they are stored, so that kernels can multiply
    /// before packing.
    fn reads_in_place(&self) -> bool {
        false
    }
    /// A hash of the weights that is equal in every process. `None` disables sharing of packed
    /// weights.
    fn fingerprint(&self) -> Option<u64> {
        None
    }
    /// Hint: all of these rows are about to be read (file readahead).
    fn will_read(&self, _name: &str, _rows: Range<usize>) {}
    /// Hint: these rows are not needed for now, and their pages may be released.
    fn release(&self, _name: &str, _rows: Range<usize>) {}
}
