//! Matrices in the form that the kernels read.

use crate::Team;
use crate::dense::{Bf16Panels, F32Panels};
use crate::panels::{EncodedRows, RowBytes};
use crate::quant::QuantPanels;
use crate::source::{Source, Stored};
use kvasir_formats::{DType, Error, encoding};
use kvasir_program::{Matrix, Program, Role, Vector, WeightId};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How a model is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32 arithmetic on the weights as stored.
    Exact,
    /// The fastest that keeps a row's bits independent of its company.
    #[default]
    Auto,
}

/// One matrix, in panels of 16 outputs.
pub(crate) enum Packed {
    Quant(QuantPanels),
    Bf16(Bf16Panels),
    F32(F32Panels),
}

impl Packed {
    /// Packs some more of what is read where it lies, about so many bytes, and returns how many it took; none if all is packed.
    pub(crate) fn pack_some(&self, team: &Team, bytes: usize) -> std::io::Result<usize> {
        match self {
            Self::Quant(w) => w.pack_some(team, bytes),
            Self::Bf16(w) => w.pack_some(team, bytes),
            Self::F32(_) => Ok(0),
        }
    }

    pub(crate) fn is_packed(&self) -> bool {
        match self {
            Self::Quant(w) => w.is_packed(),
            Self::Bf16(w) => w.is_packed(),
            Self::F32(_) => true,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Quant(w) => w.bytes(),
            Self::Bf16(w) => w.bytes(),
            Self::F32(w) => w.bytes(),
        }
    }
}

/// Which kernels a matrix goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Integers in superblocks, at their stored width.
    Quantised,
    /// Pairs of bf16.
    Bf16,
    /// f32.
    F32,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quantised => "integer panels",
            Self::Bf16 => "bf16 panels",
            Self::F32 => "f32 panels",
        })
    }
}

/// A matrix with its bias.
pub(crate) struct Linear {
    pub(crate) packed: Packed,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Bytes of it in the file.
    pub(crate) stored_bytes: usize,
}

/// Rows of a weight in its file.
struct FileRows {
    source: Arc<Source>,
    name: String,
    shape: Vec<usize>,
    first: usize,
    step: usize,
}

impl EncodedRows for FileRows {
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>)) {
        // It was there, and in this shape, when the model was loaded.
        let stored = self.source.stored(&self.name, &self.shape).ok().flatten();
        match &stored {
            Some(stored) => to(&|n| (stored.row)(self.first + n * self.step)),
            None => to(&|_| &[]),
        }
    }

    fn let_go(&self, rows: Range<usize>) {
        self.source
            .let_go(&self.name, self.first + rows.start * self.step..self.first + rows.end * self.step);
    }
}

/// Makes matrices; remembers the last weight that had to be unpacked whole, because its neighbours are often wanted next.
pub(crate) struct Packer<'a> {
    pub(crate) team: &'a Team,
    pub(crate) program: &'a Program,
    pub(crate) source: &'a Arc<Source>,
    pub(crate) precision: Precision,
    unpacked: Option<(WeightId, Vec<f32>)>,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(
        team: &'a Team,
        program: &'a Program,
        source: &'a Arc<Source>,
        precision: Precision,
    ) -> Self {
        Self { team, program, source, precision, unpacked: None }
    }

    /// All numbers of a weight.
    pub(crate) fn numbers(&self, id: WeightId) -> Result<Vec<f32>, Error> {
        let weight = self.program.weight(self.program.resolve(id));
        let values = self.source.dense(&weight.name, &weight.shape)?;
        if values.len() != weight.shape.iter().product::<usize>() {
            return Err(Error::at(
                format!("tensor {}", weight.name),
                format!("is not of shape {:?}", weight.shape),
            ));
        }
        Ok(values)
    }

    fn vector(&self, v: &Vector, len: usize) -> Result<Vec<f32>, Error> {
        let values = self.numbers(v.weight)?;
        Ok((0..len).map(|i| values.get(v.offset + i * v.stride).copied().unwrap_or_default()).collect())
    }

    pub(crate) fn linear(&mut self, m: &Matrix) -> Result<Linear, Error> {
        let weight = self.program.weight(self.program.resolve(m.weight));
        let bias = m.bias.as_ref().map(|v| self.vector(v, m.outputs)).transpose()?;
        let stored = self.source.stored(&weight.name, &weight.shape)?;
        let rows = stored.as_ref().and_then(|s| m.stored_rows(s.row_len).map(|place| (s, place)));
        let exact = self.precision == Precision::Exact || weight.role == Role::Router;
        let size = (m.outputs, m.inputs);
        let (packed, stored_bytes) = match rows {
            Some((stored, (first, step))) => {
                let bytes = stored.dtype.row_bytes(stored.row_len)? * m.outputs;
                if first + step * m.outputs.saturating_sub(1) >= stored.rows {
                    return Err(Error::at(format!("tensor {}", weight.name), "has too few rows"));
                }
                let packed = match exact || stored.dtype == DType::F32 {
                    true => self.pack_rows(stored, (first, step), size)?,
                    false => self.where_they_lie(stored.dtype, m, (first, step))?,
                };
                (packed, bytes)
            }
            None => {
                let bytes = stored
                    .map_or(m.outputs * m.inputs, |s| s.dtype.row_bytes(s.row_len).unwrap_or(0) * m.outputs);
                (self.pack_dense(m, exact)?, bytes)
            }
        };
        Ok(Linear { packed, bias, inputs: m.inputs, outputs: m.outputs, stored_bytes })
    }

    /// A matrix that is read where it lies until it is packed, unless its source is better read once.
    fn where_they_lie(
        &self,
        dtype: DType,
        m: &Matrix,
        (first, step): (usize, usize),
    ) -> Result<Packed, Error> {
        let weight = self.program.weight(self.program.resolve(m.weight));
        let (name, shape, source) = (weight.name.clone(), weight.shape.clone(), Arc::clone(self.source));
        let rows = FileRows { source, name, shape, first, step };
        let size = (m.outputs, m.inputs);
        let packed = match QuantPanels::quantised(dtype, size, rows) {
            Ok(panels) => Packed::Quant(panels),
            Err(rows) => Packed::Bf16(Bf16Panels::floats(dtype, size, rows)),
        };
        while !self.source.stays() && !packed.is_packed() {
            packed.pack_some(self.team, usize::MAX).map_err(out_of_memory)?;
        }
        Ok(packed)
    }

    fn pack_rows(
        &self,
        s: &Stored<'_>,
        (first, step): (usize, usize),
        size: (usize, usize),
    ) -> Result<Packed, Error> {
        let row = |n: usize| (s.row)(first + n * step);
        let fill = |n: usize, out: &mut [f32]| {
            // The row's length was checked against the type when the file was opened.
            if encoding::dequantize(s.dtype, row(n), out).is_err() {
                out.fill(f32::NAN);
            }
        };
        F32Panels::pack(self.team, size, &fill).map(Packed::F32).map_err(out_of_memory)
    }

    fn pack_dense(&mut self, m: &Matrix, exact: bool) -> Result<Packed, Error> {
        let id = self.program.resolve(m.weight);
        if self.unpacked.as_ref().is_none_or(|(have, _)| *have != id) {
            self.unpacked = None;
            self.unpacked = Some((id, self.numbers(id)?));
        }
        let values = self.unpacked.as_ref().map_or(&[][..], |(_, values)| values);
        let last =
            m.offset + (m.outputs.max(1) - 1) * m.output_stride + (m.inputs.max(1) - 1) * m.input_stride;
        if last >= values.len() {
            return Err(Error::at(
                format!("tensor {}", self.program.weight(id).name),
                "is too small for its matrix",
            ));
        }
        let fill = |n: usize, out: &mut [f32]| {
            let from = &values[m.offset + n * m.output_stride..];
            out.iter_mut().zip(from.iter().step_by(m.input_stride.max(1))).for_each(|(o, &v)| *o = v);
        };
        let kept_whole = |s: Option<Stored<'_>>| s.is_some_and(|s| s.dtype == DType::F32);
        let weight = self.program.weight(id);
        let wide = kept_whole(self.source.stored(&weight.name, &weight.shape)?);
        let size = (m.outputs, m.inputs);
        let packed = match exact || wide {
            true => F32Panels::pack(self.team, size, &fill).map(Packed::F32),
            false => Bf16Panels::rounded(self.team, size, &fill).map(Packed::Bf16),
        };
        packed.map_err(out_of_memory)
    }
}

pub(crate) fn out_of_memory(e: std::io::Error) -> Error {
    Error::at("", format!("no memory for weights: {e}"))
}
