//! GGUF writer: header and tensor table first, then tensor data streamed in the same order.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gguf::value::{Kind, Value, write_str};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

const ALIGNMENT: usize = 32;

/// Builder and streaming writer of a GGUF file.
///
/// Only metadata and tensor descriptions are kept in memory; data is supplied tensor by tensor in
/// `write`.
#[derive(Debug, Default)]
pub struct Writer {
    meta: BTreeMap<String, Value>,
    tensors: Vec<Described>,
}

#[derive(Debug)]
struct Described {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
}

impl Writer {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a metadata value, replacing an earlier one.
    pub fn set(&mut self, key: impl Into<String>, value: Value) {
        self.meta.insert(key.into(), value);
    }

    /// Appends a tensor description, with `shape` slowest dimension first. Fails for types that
    /// GGUF does not have.
    pub fn describe(&mut self, name: impl Into<String>, dtype: DType, shape: &[usize]) -> Result<()> {
        let name = name.into();
        let fail = |why: String| Error::at(format!("tensor {name}"), why);
        if dtype.gguf_id().is_none() {
            return Err(fail(format!("`{dtype}` cannot be represented in GGUF")));
        }
        if shape.is_empty() || shape.len() > 4 || shape.contains(&0) {
            return Err(fail(format!("shape `{shape:?}` cannot be represented in GGUF")));
        }
        let bytes = dtype.tensor_bytes(shape).map_err(|e| fail(e.to_string()))?;
        self.tensors.push(Described { name, dtype, shape: shape.to_vec(), bytes });
        Ok(())
    }

    /// Writes the header, then calls `data` for each tensor's bytes in description order.
    ///
    /// Fails if the bytes do not have the described size.
    pub fn write<W: Write>(
        &self,
        mut to: W,
        mut data: impl FnMut(&str, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let io = |e: io::Error| Error::at("writing", e);
        let header = self.header();
        to.write_all(&header).map_err(io)?;
        let mut bytes = Vec::new();
        for tensor in &self.tensors {
            bytes.clear();
            data(&tensor.name, &mut bytes)?;
            if bytes.len() != tensor.bytes {
                let why = format!("{} bytes of data for a tensor of {} bytes", bytes.len(), tensor.bytes);
                return Err(Error::at(format!("tensor {}", tensor.name), why));
            }
            bytes.resize(tensor.bytes.next_multiple_of(ALIGNMENT), 0);
            to.write_all(&bytes).map_err(io)?;
        }
        to.flush().map_err(io)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            write_str(key, &mut out);
            out.extend(Kind::id(value.kind()).to_le_bytes());
            value.write(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            write_str(&tensor.name, &mut out);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for &dim in tensor.shape.iter().rev() {
                out.extend((dim as u64).to_le_bytes());
            }
            out.extend(tensor.dtype.gguf_id().unwrap_or(u32::MAX).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}
