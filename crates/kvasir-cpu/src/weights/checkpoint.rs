//! `WeightSource` for a `Checkpoint`: mapped safetensors or GGUF files, FP8 with block scales, and
//! MXFP4.
//!
//! Rows are slices of the mapping, so matrices can be read in place before they are packed.
//! `will_read` and `release` pass on to the mapping's prefetch and release hints. Shapes are
//! validated when a weight is looked up, so reading a row cannot fail.

use crate::weights::source::{Nibbles, Scaled, Stored, WeightSource};
use kvasir_formats::{Checkpoint, DType, Error, TensorView, encoding};
use std::ops::Range;

/// Encoded rows of a tensor; fails if its row length does not fit the data type.
fn rows_of(view: TensorView<'_>) -> Result<Stored<'_>, Error> {
    let row_len = view.row_len();
    // Validated here once, so that reading a row cannot fail.
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

    fn nibbles<'a>(&'a self, name: &'a str) -> Result<Option<Nibbles<'a>>, Error> {
        let Some((blocks, scales)) = self.mxfp4(name)?.filter(|_| self.tensor(name).is_none()) else {
            return Ok(None);
        };
        let across = scales.row_len();
        let row = move |n: usize| {
            let codes = blocks.rows(n * across, across);
            (codes.unwrap_or_default(), scales.rows(n, 1).unwrap_or_default())
        };
        Ok(Some(Nibbles { row_len: across * 32, row: Box::new(row) }))
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

    fn row(&self, name: &str, _: &[usize], n: usize, out: &mut [f32]) -> Result<(), Error> {
        self.dense_row(name, n, out)
    }

    fn reads_in_place(&self) -> bool {
        true
    }

    fn fingerprint(&self) -> Option<u64> {
        Some(Checkpoint::fingerprint(self))
    }

    fn will_read(&self, name: &str, rows: Range<usize>) {
        Checkpoint::prefault(self, name, rows);
    }

    fn release(&self, name: &str, rows: Range<usize>) {
        Checkpoint::release(self, name, rows);
    }
}
