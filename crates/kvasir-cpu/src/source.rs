use kvasir_formats::{DType, Error, encoding};
use std::ops::Range;

/// A source that any number of models and threads share.
pub(crate) type Source = dyn WeightSource + Send + Sync;

/// A weight whose rows can be read one by one.
pub struct Stored<'a> {
    /// How rows are encoded.
    pub dtype: DType,
    /// Elements of a row.
    pub row_len: usize,
    /// Number of rows, all leading dimensions counted as one.
    pub rows: usize,
    /// The bytes of a row.
    pub row: Box<dyn Fn(usize) -> &'a [u8] + Sync + 'a>,
}

/// A weight of 8-bit floats that each block shares a scale of.
pub struct Scaled<'a> {
    /// The floats.
    pub codes: Stored<'a>,
    /// Rows and elements of a row that share a scale.
    pub block: (usize, usize),
    /// The scales of a row of blocks after the other's.
    pub scales: Vec<f32>,
}

impl Scaled<'_> {
    /// The scale of an element.
    pub fn scale(&self, row: usize, element: usize) -> f32 {
        let across = self.codes.row_len.div_ceil(self.block.1);
        self.scales[row / self.block.0 * across + element / self.block.1]
    }
}

/// A row's codes, the earlier of two in a byte's lower half, and the bytes of its scales. Empty where there is no such row.
pub type NibbleRow<'a> = dyn Fn(usize) -> (&'a [u8], &'a [u8]) + Sync + 'a;

/// A weight of 4-bit floats, 32 of which share a power of two.
pub struct Nibbles<'a> {
    /// Elements of a row.
    pub row_len: usize,
    /// A row by its number.
    pub row: Box<NibbleRow<'a>>,
}

/// Where a model's weights come from.
pub trait WeightSource: Sync {
    /// The rows of a weight, unless its bytes mean something only together with another tensor.
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error>;
    /// A weight of 8-bit floats and its scales; none if it is another.
    fn scaled<'a>(&'a self, _name: &'a str) -> Result<Option<Scaled<'a>>, Error> {
        Ok(None)
    }
    /// A weight of 4-bit floats whose scales are apart; none if it is another.
    fn nibbles<'a>(&'a self, _name: &'a str) -> Result<Option<Nibbles<'a>>, Error> {
        Ok(None)
    }
    /// The encoding of a weight's rows, whether or not scales in other tensors go with them; none if rows cannot be read one by one.
    fn dtype(&self, name: &str, shape: &[usize]) -> Result<Option<DType>, Error> {
        Ok(self.stored(name, shape)?.map(|stored| stored.dtype))
    }
    /// All numbers of a weight.
    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error>;
    /// Row `n` of a weight as numbers.
    fn row(&self, name: &str, shape: &[usize], n: usize, out: &mut [f32]) -> Result<(), Error> {
        let none = || Error::at(format!("tensor {name}"), "cannot be read row by row");
        let stored = self.stored(name, shape)?.ok_or_else(none)?;
        encoding::dequantize(stored.dtype, (stored.row)(n), out)
    }
    /// Whether rows can be read again and again where they lie, so that kernels may do so.
    fn stays(&self) -> bool {
        false
    }
    /// Says that some rows of a weight are read soon, all of them.
    fn bring(&self, _name: &str, _rows: Range<usize>) {}
    /// Says that some rows of a weight are not needed any more for now.
    fn let_go(&self, _name: &str, _rows: Range<usize>) {}
}
