//! Borrowed views of checkpoint tensors.

use crate::dtype::DType;
use crate::encoding;
use crate::error::{Error, Result};

/// A tensor of a checkpoint: borrowed bytes, row-major, slowest dimension first.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Hugging Face name.
    pub name: &'a str,
    /// Storage type of the elements.
    pub dtype: DType,
    /// Slowest dimension first; quantized blocks run along the last dimension.
    pub shape: &'a [usize],
    /// Exactly the tensor's bytes, with no alignment guarantee.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        // The product was checked for overflow at open.
        self.shape.iter().product()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last dimension; 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes of `count` rows from row `first`, with all leading dimensions flattened.
    pub fn rows(&self, first: usize, count: usize) -> Result<&'a [u8]> {
        let row = self.dtype.row_bytes(self.row_len())?;
        let range = first.checked_mul(row).zip(first.checked_add(count).and_then(|n| n.checked_mul(row)));
        range.and_then(|(a, b)| self.bytes.get(a..b)).ok_or_else(|| {
            Error::at(self.name, format!("rows {first} to {first} + {count} are outside the tensor"))
        })
    }

    /// Dequantizes all elements to f32. Companion scales are not applied: see
    /// [`Checkpoint::dense`](crate::Checkpoint::dense).
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.len()];
        encoding::dequantize(self.dtype, self.bytes, &mut out).map_err(|e| Error::at(self.name, e))?;
        Ok(out)
    }
}
