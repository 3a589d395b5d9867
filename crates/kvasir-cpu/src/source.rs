use kvasir_formats::{Checkpoint, DType, Error, TensorView, encoding};
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

/// Where a model's weights come from.
pub trait WeightSource: Sync {
    /// The rows of a weight, unless its bytes mean something only together with another tensor.
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error>;
    /// A weight of 8-bit floats and its scales; none if it is another.
    fn scaled<'a>(&'a self, _name: &'a str) -> Result<Option<Scaled<'a>>, Error> {
        Ok(None)
    }
    /// The encoding of a weight's rows, whether or not scales in other tensors go with them; none if rows cannot be read one by one.
    fn dtype(&self, name: &str, shape: &[usize]) -> Result<Option<DType>, Error> {
        Ok(self.stored(name, shape)?.map(|stored| stored.dtype))
    }
    /// All numbers of a weight.
    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error>;
    /// Row `n` of a weight as numbers; false if it has none.
    fn row(&self, name: &str, shape: &[usize], n: usize, out: &mut [f32]) -> bool {
        self.stored(name, shape)
            .ok()
            .flatten()
            .is_some_and(|stored| encoding::dequantize(stored.dtype, (stored.row)(n), out).is_ok())
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

fn rows_of(view: TensorView<'_>) -> Result<Stored<'_>, Error> {
    let row_len = view.row_len();
    // Checked once here, so that reading a row cannot fail.
    view.dtype.row_bytes(row_len)?;
    let rows = view.len() / row_len.max(1);
    let row = move |n| view.rows(n, 1).unwrap_or_default();
    Ok(Stored { dtype: view.dtype, row_len, rows, row: Box::new(row) })
}

impl WeightSource for Checkpoint {
    fn stored<'a>(&'a self, name: &'a str, _: &'a [usize]) -> Result<Option<Stored<'a>>, Error> {
        self.tensor(name).filter(|view| view.dtype != DType::F8E4M3).map(rows_of).transpose()
    }

    fn scaled<'a>(&'a self, name: &'a str) -> Result<Option<Scaled<'a>>, Error> {
        let Some(view) = self.tensor(name).filter(|view| view.dtype == DType::F8E4M3) else {
            return Ok(None);
        };
        let (blocks, rows, elements) = self.block_scales(&view)?;
        let mut scales = vec![0.0; blocks.len()];
        encoding::dequantize(blocks.dtype, blocks.bytes, &mut scales)?;
        Ok(Some(Scaled { codes: rows_of(view)?, block: (rows, elements), scales }))
    }

    fn dtype(&self, name: &str, _: &[usize]) -> Result<Option<DType>, Error> {
        Ok(match self.tensor(name) {
            Some(view) => Some(view.dtype),
            None => self.mxfp4(name)?.map(|_| DType::Mxfp4),
        })
    }

    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let (found, values) = Checkpoint::dense(self, name)?;
        if found != shape {
            let why = format!("has shape {found:?}, the program wants {shape:?}");
            return Err(Error::at(format!("tensor {name}"), why));
        }
        Ok(values)
    }

    fn row(&self, name: &str, _: &[usize], n: usize, out: &mut [f32]) -> bool {
        self.dense_row(name, n, out).is_ok()
    }

    fn stays(&self) -> bool {
        true
    }

    fn bring(&self, name: &str, rows: Range<usize>) {
        Checkpoint::bring(self, name, rows);
    }

    fn let_go(&self, name: &str, rows: Range<usize>) {
        Checkpoint::let_go(self, name, rows);
    }
}
