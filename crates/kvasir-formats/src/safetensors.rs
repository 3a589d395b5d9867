//! Parses the header of a safetensors file into tensor names, types, shapes and byte ranges.
//!
//! The `safetensors` crate checks that tensors are contiguous without gaps or overlaps, that sizes
//! match shapes, and that the last tensor ends with the file. Ranges are checked again here.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files::mapped::Mapped;
use safetensors::{Dtype as Stored, SafeTensorError, SafeTensors};
use std::ops::Range;

/// Type, shape and byte range of a tensor within its file.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<usize>,
}

const MAX_DIMS: usize = 8;

pub(crate) fn read(file: &Mapped) -> Result<Vec<Placed>> {
    let bytes = file.bytes();
    let (header, meta) = SafeTensors::read_metadata(bytes)
        .map_err(|e| Error::at("header", explain(&e, bytes)).in_file(file.path()))?;
    // The header length takes the first eight bytes.
    let start =
        header.checked_add(8).ok_or_else(|| Error::at("header", "length overflows").in_file(file.path()))?;
    let mut placed = Vec::with_capacity(meta.tensors().len());
    for (name, info) in meta.tensors() {
        let fail = |why: String| Error::at(format!("tensor {name}"), why).in_file(file.path());
        let dtype =
            dtype(info.dtype).ok_or_else(|| fail(format!("type `{:?}` is not supported", info.dtype)))?;
        if info.shape.len() > MAX_DIMS {
            return Err(fail(format!("{} dimensions; at most {MAX_DIMS} are supported", info.shape.len())));
        }
        let (a, b) = info.data_offsets;
        let range = start.checked_add(a).zip(start.checked_add(b)).map(|(a, b)| a..b);
        let range = range.filter(|r| bytes.get(r.clone()).is_some());
        let range = range.ok_or_else(|| fail(format!("bytes {a} to {b} are outside the file")))?;
        if dtype.tensor_bytes(&info.shape).map_err(|e| fail(e.to_string()))? != range.len() {
            return Err(fail("its size does not match its shape".into()));
        }
        placed.push(Placed { name: name.clone(), dtype, shape: info.shape.clone(), range });
    }
    placed.sort_by_key(|p| p.range.start);
    Ok(placed)
}

/// A header error in terms of the file. A truncated file fails in one of three ways, depending on
/// where it ends.
fn explain(error: &SafeTensorError, bytes: &[u8]) -> String {
    match error {
        SafeTensorError::HeaderTooSmall => {
            format!(
                "the file has {} bytes, fewer than the 8 of the header's length: it is truncated",
                bytes.len()
            )
        }
        SafeTensorError::InvalidHeaderLength => {
            format!(
                "it is longer than the {} bytes that follow its length: the file is truncated",
                bytes.len() - 8
            )
        }
        SafeTensorError::MetadataIncompleteBuffer => {
            "its tensors do not end where the file ends: the file is truncated, or has bytes after them"
                .into()
        }
        other => other.to_string(),
    }
}

fn dtype(stored: Stored) -> Option<DType> {
    Some(match stored {
        Stored::F32 => DType::F32,
        Stored::F16 => DType::F16,
        Stored::BF16 => DType::BF16,
        Stored::F64 => DType::F64,
        Stored::F8_E4M3 => DType::F8E4M3,
        Stored::F8_E8M0 => DType::F8E8M0,
        Stored::U8 => DType::U8,
        Stored::I8 => DType::I8,
        Stored::I16 => DType::I16,
        Stored::I32 => DType::I32,
        Stored::I64 => DType::I64,
        Stored::BOOL => DType::Bool,
        _ => return None,
    })
}
