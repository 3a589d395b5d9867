//! Chooses the kernel family of each weight matrix and packs it from its source.
//!
//! | precision and stored type | kernel family |
//! |---|---|
//! | `F32`, router weights, or stored f32 | f32 panels at the stored width (FP8, MXFP4: codes) |
//! | `Bf16x2`, not stored as bf16 | f32 panels |
//! | block-quantized integers (GGUF types, MXFP4) | integer panels |
//! | all else | bf16 panels |
//!
//! Matrices whose rows are stored rows, or whole quantization blocks of them (a rank's columns),
//! are read in place until they are packed, a part at each step (`in_place`). Transposed and
//! strided views are packed from dequantized rows (`pack_dense`). Pages of the file are released
//! once a matrix is packed.
//!
//! With a `PackedFile`, processes share the panels of weights whose source has a fingerprint.

use crate::threads::pool::ThreadPool;
use crate::weights::bf16::Bf16Panels;
use crate::weights::f32::panels::F32Panels;
use crate::weights::f32::width::Width;
use crate::weights::f32::{PART, fp8, mxfp4};
use crate::weights::linear::{Linear, Packed};
use crate::weights::packed_file::PackedFile;
use crate::weights::panels::{EncodedRows, RowBytes, WriteRow, out_of_memory};
use crate::weights::precision::Precision;
use crate::weights::quant::panels::QuantPanels;
use crate::weights::shared_panels::MatrixId;
use crate::weights::source::{Scaled, Source};
use kvasir_formats::{DType, Error};
use kvasir_program::{Matrices, Matrix, Program, Role, StoredRows, Vector, WeightId};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Rows `first + n * step` of a stored weight, or one byte range of each, looked up by name at each
/// read.
struct FileRows {
    source: Arc<Source>,
    name: String,
    shape: Vec<usize>,
    first: usize,
    step: usize,
    /// Byte range within each row; `None` for complete rows.
    part: Option<Range<usize>>,
}

impl EncodedRows for FileRows {
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>)) {
        // The weight was present in this shape when the model was loaded.
        let stored = self.source.stored(&self.name, &self.shape).ok().flatten();
        match (&stored, &self.part) {
            (Some(stored), None) => to(&|n| (stored.row)(self.first + n * self.step)),
            (Some(stored), Some(part)) => {
                to(&|n| (stored.row)(self.first + n * self.step).get(part.clone()).unwrap_or_default())
            }
            (None, _) => to(&|_| &[]),
        }
    }

    fn will_read(&self, rows: Range<usize>) {
        if self.part.is_none() {
            return self.source.will_read(&self.name, self.in_file(rows));
        }
        // Other ranks read the rest of the rows, so only pages of this range are prefaulted.
        const PAGE: usize = 4096;
        self.lend(&mut |row| {
            let touched = rows.clone().flat_map(|n| row(n).iter().step_by(PAGE));
            std::hint::black_box(touched.fold(0, |all, byte| all ^ byte));
        });
    }

    fn release(&self, rows: Range<usize>) {
        self.source.release(&self.name, self.in_file(rows));
    }
}

impl FileRows {
    /// Row numbers of the stored weight for rows of this matrix.
    fn in_file(&self, rows: Range<usize>) -> Range<usize> {
        self.first + rows.start * self.step..self.first + rows.end * self.step
    }
}

/// Rows of a weight in f32.
struct Dequantized {
    weight: WeightId,
    rows: Range<usize>,
    values: Vec<f32>,
}

/// Packs matrices. Caches the last dequantized rows, because consecutive matrices often view the
/// same ones.
pub(crate) struct Packer<'a> {
    pub(crate) threads: &'a ThreadPool,
    pub(crate) program: &'a Program,
    pub(crate) source: &'a Arc<Source>,
    pub(crate) precision: Precision,
    /// The file for shared panels, and the fingerprint of the source.
    shared: Option<(Arc<PackedFile>, u64)>,
    dequantized: Option<Dequantized>,
}

impl<'a> Packer<'a> {
    pub(crate) fn new(
        threads: &'a ThreadPool,
        program: &'a Program,
        source: &'a Arc<Source>,
        precision: Precision,
        file: Option<Arc<PackedFile>>,
    ) -> Self {
        let shared = file.zip(source.fingerprint());
        Self { threads, program, source, precision, shared, dequantized: None }
    }

    /// The content hash of a matrix's panels: all inputs that determine their bytes. `None` if
    /// panels are private.
    fn matrix_id(&self, m: &Matrix) -> Option<MatrixId> {
        let (file, fingerprint) = self.shared.as_ref()?;
        let weight = self.program.weight(self.program.resolve(m.weight));
        let mut hasher = DefaultHasher::new();
        (fingerprint, self.precision, &weight.name, &weight.shape).hash(&mut hasher);
        format!("{:?}", weight.role).hash(&mut hasher);
        (m.offset, m.outputs, m.output_stride, m.inputs, m.input_stride).hash(&mut hasher);
        Some(MatrixId { file: Arc::clone(file), hash: hasher.finish() })
    }

    /// Dequantizes a whole weight to f32 and releases its file pages.
    pub(crate) fn numbers(&self, id: WeightId) -> Result<Vec<f32>, Error> {
        let weight = self.program.weight(self.program.resolve(id));
        let values = self.source.dense(&weight.name, &weight.shape)?;
        if values.len() != weight.shape.iter().product::<usize>() {
            return Err(Error::at(
                format!("tensor {}", weight.name),
                format!("is not of shape {:?}", weight.shape),
            ));
        }
        self.source.release(&weight.name, 0..usize::MAX);
        Ok(match &weight.part {
            Some(part) => values[part.clone()].to_vec(),
            None => values,
        })
    }

    /// Dequantizes rows of a weight to f32 and releases their file pages. Dequantizes all rows if
    /// the source has no access by row.
    fn dequantize_rows(&self, id: WeightId, rows: Range<usize>) -> Result<Dequantized, Error> {
        let weight = self.program.weight(self.program.resolve(id));
        let row_len = weight.shape.last().copied().unwrap_or(1).max(1);
        let all = weight.shape.iter().product::<usize>() / row_len;
        let mut values = vec![0.0; if rows.len() < all { rows.len() * row_len } else { 0 }];
        let read = values
            .chunks_exact_mut(row_len)
            .zip(rows.clone())
            .try_for_each(|(row, n)| self.source.row(&weight.name, &weight.shape, n, row));
        if values.is_empty() || read.is_err() {
            return Ok(Dequantized { weight: id, rows: 0..all, values: self.numbers(id)? });
        }
        self.source.release(&weight.name, rows.clone());
        Ok(Dequantized { weight: id, rows, values })
    }

    /// Checks that rows of an embedding table can be read one by one.
    pub(crate) fn check_row_access(&self, table: WeightId) -> Result<(), Error> {
        let weight = self.program.weight(self.program.resolve(table));
        let mut row = vec![0.0; weight.shape.last().copied().unwrap_or(0)];
        self.source.row(&weight.name, &weight.shape, 0, &mut row)?;
        self.source.release(&weight.name, 0..1);
        Ok(())
    }

    /// A bias or norm vector of `len` numbers, possibly strided or part of a stacked weight.
    fn vector(&self, v: &Vector, len: usize) -> Result<Vec<f32>, Error> {
        let weight = self.program.weight(self.program.resolve(v.weight));
        let row_len = weight.shape.last().copied().unwrap_or(1).max(1);
        let pick = |values: &[f32], from: usize| -> Vec<f32> {
            (0..len).map(|i| values.get(from + i * v.stride).copied().unwrap_or_default()).collect()
        };
        // Reads one row of a stacked expert weight instead of the whole stack.
        let (row, from) = (v.offset / row_len, v.offset % row_len);
        if from + len.saturating_sub(1) * v.stride < row_len {
            let mut values = vec![0.0; row_len];
            if self.source.row(&weight.name, &weight.shape, row, &mut values).is_ok() {
                self.source.release(&weight.name, row..row + 1);
                return Ok(pick(&values, from));
            }
        }
        Ok(pick(&self.numbers(v.weight)?, v.offset))
    }

    /// Builds one linear layer's matrix. Its file pages are released if it is packed already.
    pub(crate) fn linear(&mut self, m: &Matrix) -> Result<Linear, Error> {
        self.linear_within(m, element_range(m))
    }

    /// Builds the matrices of a family. Matrices that view one weight are dequantized together.
    pub(crate) fn linears(&mut self, all: &Matrices) -> Result<Vec<Linear>, Error> {
        let last = all.nth(all.count.saturating_sub(1));
        let together =
            (all.weight_stride == 0).then(|| element_range(&all.first).start..element_range(&last).end);
        let build = |m: Matrix| self.linear_within(&m, together.clone().unwrap_or_else(|| element_range(&m)));
        (0..all.count).map(|n| all.nth(n)).map(build).collect()
    }

    /// Builds a matrix. If it is packed from dequantized rows, all elements of its weight in
    /// `around` are dequantized with it.
    fn linear_within(&mut self, m: &Matrix, around: Range<usize>) -> Result<Linear, Error> {
        let weight = self.program.weight(self.program.resolve(m.weight));
        let bias = m.bias.as_ref().map(|v| self.vector(v, m.outputs)).transpose()?;
        let (name, shape) = (&weight.name, &weight.shape);
        let dtype = self.source.dtype(name, shape)?;
        let in_f32 = self.precision == Precision::F32 || weight.role == Role::Router;
        let in_bf16x2 = self.precision == Precision::Bf16x2 && dtype != Some(DType::BF16);
        let wide = in_f32 || in_bf16x2 || dtype == Some(DType::F32);
        let row_len = shape.last().copied().unwrap_or(1);
        // Column ranges are read in place if they consist of whole blocks.
        let stored_rows = dtype.zip(m.stored_rows(row_len)).filter(|(dtype, rows)| {
            [rows.columns.start, rows.columns.len()].iter().all(|len| dtype.row_bytes(*len).is_ok())
        });
        let used = stored_rows.as_ref().map_or(row_len, |(_, rows)| rows.columns.len());
        let stored_bytes = dtype.map_or(Ok(used), |dtype| dtype.row_bytes(used))? * m.outputs;
        let packed = match &stored_rows {
            None => self.pack_dense(m, wide, dtype, around)?,
            Some((dtype, view)) => {
                let StoredRows { first, step, columns } = view;
                let stored = self.source.stored(name, shape)?;
                let rows = stored.as_ref().map_or_else(|| shape.iter().rev().skip(1).product(), |s| s.rows);
                if first + step * m.outputs.saturating_sub(1) >= rows {
                    return Err(Error::at(format!("tensor {name}"), "has too few rows"));
                }
                let codes = if wide { self.pack_codes(name, m, view, row_len)? } else { None };
                match codes {
                    Some(packed) => packed,
                    None if !wide && stored.is_some() => self.in_place(*dtype, m, view, row_len)?,
                    None => self.pack(wide.then_some(Width::of(*dtype)), m, &|n, out| {
                        let row = first + n * step;
                        if out.len() == row_len {
                            return self.source.row(name, shape, row, out);
                        }
                        let mut whole = vec![0.0; row_len];
                        self.source.row(name, shape, row, &mut whole)?;
                        out.copy_from_slice(&whole[columns.clone()]);
                        Ok(())
                    })?,
                }
            }
        };
        if let Some((_, StoredRows { first, step, .. })) = stored_rows.filter(|_| packed.is_packed()) {
            self.source.release(name, first..first + step * m.outputs);
        }
        Ok(Linear { packed, bias, inputs: m.inputs, outputs: m.outputs, stored_bytes, makes_logits: false })
    }

    /// A matrix that is read in place until it is packed. It is packed at once if the source does
    /// not stay readable.
    fn in_place(&self, dtype: DType, m: &Matrix, view: &StoredRows, row_len: usize) -> Result<Packed, Error> {
        let weight = self.program.weight(self.program.resolve(m.weight));
        let (name, shape, source) = (weight.name.clone(), weight.shape.clone(), Arc::clone(self.source));
        let StoredRows { first, step, columns } = view.clone();
        let bytes = dtype.row_bytes(columns.start)?..dtype.row_bytes(columns.end)?;
        let part = (columns.len() < row_len).then_some(bytes);
        let rows = FileRows { source, name, shape, first, step, part };
        let size = (m.outputs, m.inputs);
        // Only matrices that can be read in place may wait for other processes to pack them.
        let id = self.matrix_id(m).filter(|_| self.source.reads_in_place());
        let packed = match QuantPanels::quantized(dtype, size, rows, id.as_ref()) {
            Ok(panels) => Packed::Quant(panels),
            Err(rows) => Packed::Bf16(Bf16Panels::floats(dtype, size, rows, id)),
        };
        while !self.source.reads_in_place() && !packed.is_packed() {
            packed.pack_some(self.threads, usize::MAX).map_err(out_of_memory)?;
        }
        Ok(packed)
    }

    /// Packs the rows that `row` writes: in f32 arithmetic at the given width, or as bf16 if there
    /// is none.
    fn pack(&self, wide: Option<Width>, m: &Matrix, row: &WriteRow<'_>) -> Result<Packed, Error> {
        let (size, id) = ((m.outputs, m.inputs), self.matrix_id(m));
        match wide {
            Some(width) => F32Panels::numbers(self.threads, size, width, id, row).map(Packed::F32),
            None => Bf16Panels::rounded(self.threads, size, id, row).map(Packed::Bf16),
        }
    }

    /// Packs FP8 or MXFP4 codes with their scales, without dequantization; `None` if the weight is
    /// of another type, or a column boundary separates elements of one scale.
    fn pack_codes(
        &self,
        name: &str,
        m: &Matrix,
        view: &StoredRows,
        row_len: usize,
    ) -> Result<Option<Packed>, Error> {
        let (threads, size, id) = (self.threads, (m.outputs, m.inputs), self.matrix_id(m));
        let StoredRows { first, step, columns } = view;
        let is_aligned = columns.start.is_multiple_of(PART)
            && (columns.end == row_len || columns.end.is_multiple_of(PART));
        let is_scaled = |w: &Scaled<'_>| w.codes.row_len == row_len && w.block.1.is_multiple_of(PART);
        let packed = if !is_aligned {
            return Ok(None);
        } else if let Some(w) = self.source.nibbles(name)?.filter(|w| w.row_len == row_len) {
            F32Panels::codes(threads, size, Width::Mxfp4, id, |n, lane, panel, _| {
                let (codes, scales) = (w.row)(first + n * step);
                let codes = codes.get(columns.start / 2..columns.end / 2).unwrap_or_default();
                let scales = scales.get(columns.start / PART..columns.end / PART).unwrap_or_default();
                mxfp4::put_codes(lane, (codes, scales), panel);
                Ok(())
            })
        } else if let Some(w) = self.source.scaled(name)?.filter(is_scaled) {
            F32Panels::codes(threads, size, Width::Fp8, id, |n, lane, panel, _| {
                let row = first + n * step;
                let codes = (w.codes.row)(row).get(columns.clone()).unwrap_or_default();
                fp8::put_codes(lane, codes, |part| w.scale(row, columns.start + part * PART), panel);
                Ok(())
            })
        } else {
            return Ok(None);
        };
        packed.map(|packed| Some(Packed::F32(packed)))
    }

    /// Packs a view that does not consist of complete stored rows or blocks. Dequantizes the rows
    /// that contain the elements in `around`.
    fn pack_dense(
        &mut self,
        m: &Matrix,
        wide: bool,
        dtype: Option<DType>,
        around: Range<usize>,
    ) -> Result<Packed, Error> {
        let id = self.program.resolve(m.weight);
        let shape = &self.program.weight(id).shape;
        let row_len = shape.last().copied().unwrap_or(1).max(1);
        if element_range(m).end > shape.iter().product::<usize>() {
            return Err(Error::at(
                format!("tensor {}", self.program.weight(id).name),
                "is too small for its matrix",
            ));
        }
        let rows = around.start / row_len..around.end.div_ceil(row_len);
        let covers = |have: &Dequantized| {
            have.weight == id && have.rows.start <= rows.start && rows.end <= have.rows.end
        };
        if !self.dequantized.as_ref().is_some_and(covers) {
            self.dequantized = None;
            self.dequantized = Some(self.dequantize_rows(id, rows)?);
        }
        let unpacked = self.dequantized.as_ref();
        let (values, start) =
            unpacked.map_or((&[][..], 0), |have| (&have.values[..], have.rows.start * row_len));
        let fill = |n: usize, out: &mut [f32]| {
            let from = &values[m.offset - start + n * m.output_stride..];
            out.iter_mut().zip(from.iter().step_by(m.input_stride.max(1))).for_each(|(o, &v)| *o = v);
            Ok(())
        };
        // Block-scaled widths do not fit strided inputs.
        let width = dtype.filter(|dtype| dtype.block_len() == 1).map_or(Width::F32, Width::of);
        self.pack(wide.then_some(width), m, &fill)
    }
}

/// The element range of a weight that a matrix spans, gaps between strides included.
fn element_range(m: &Matrix) -> Range<usize> {
    let last = (m.outputs.max(1) - 1) * m.output_stride + (m.inputs.max(1) - 1) * m.input_stride;
    m.offset..m.offset + last + 1
}
