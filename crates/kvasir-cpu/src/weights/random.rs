//! A `WeightSource` of random weights, for benchmarks of model shapes without a checkpoint.

use crate::weights::source::{Stored, WeightSource};
use kvasir_formats::{DType, Error, encoding};
use std::collections::HashMap;
use std::sync::Mutex;

/// Random weights of one data type, to benchmark a model shape without its checkpoint.
pub struct RandomWeights {
    dtype: DType,
    /// A pool of rows per row length, reused cyclically.
    rows: Mutex<HashMap<usize, &'static [u8]>>,
}

/// Rows generated per row length.
const ROWS: usize = 61;

impl RandomWeights {
    /// Matrices of type `dtype`; rows that are not whole blocks of it become bf16.
    pub fn new(dtype: DType) -> Self {
        Self { dtype, rows: Mutex::new(HashMap::new()) }
    }

    /// The pool of random rows of a length, generated on first use from a fixed seed.
    fn random_rows(&self, dtype: DType, row_len: usize) -> Result<&'static [u8], Error> {
        let mut rows = self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(bytes) = rows.get(&row_len) {
            return Ok(bytes);
        }
        let mut seed = row_len as u64 + 1;
        let mut bytes: Vec<u8> = Vec::new();
        bytes.resize_with(dtype.row_bytes(row_len)? * ROWS, || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        });
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            tame(dtype, block);
        }
        // Leaked once per row length and process, which benchmarks can afford.
        let bytes: &'static [u8] = Box::leak(bytes.into_boxed_slice());
        rows.insert(row_len, bytes);
        Ok(bytes)
    }
}

/// Byte offsets of the f16 scales within a block.
pub(crate) fn scales_at(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        // Their scales are powers of two, or they have none.
        DType::Mxfp4
        | DType::F32
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::F8E4M3
        | DType::F8E8M0
        | DType::U8
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::Bool => &[],
    }
}

/// Overwrites scales and exponents of a random block so that it decodes to small finite values.
fn tame(dtype: DType, block: &mut [u8]) {
    let small = half::f16::from_f32(0.002).to_le_bytes();
    if dtype == DType::Mxfp4
        && let Some(power) = block.first_mut()
    {
        *power = 118 + *power % 4;
    }
    // Sets exponents near that of 0.01.
    if let DType::BF16 | DType::F16 | DType::F32 = dtype
        && let Some(top) = block.last_mut()
    {
        *top = *top & 0x80 | if dtype == DType::F16 { 0x20 } else { 0x3c };
    }
    for &at in scales_at(dtype) {
        if let Some(place) = block.get_mut(at..at + 2) {
            place.copy_from_slice(&small);
        }
    }
}

impl WeightSource for RandomWeights {
    fn stored<'a>(&'a self, _: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error> {
        let Some((&row_len, outer)) = shape.split_last() else { return Ok(None) };
        let dtype = if row_len.is_multiple_of(self.dtype.block_len()) { self.dtype } else { DType::BF16 };
        let bytes = self.random_rows(dtype, row_len)?;
        let len = dtype.row_bytes(row_len)?;
        let row = move |n: usize| bytes.get(n % ROWS * len..(n % ROWS + 1) * len).unwrap_or_default();
        Ok(Some(Stored { dtype, row_len, rows: outer.iter().product(), row: Box::new(row) }))
    }

    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        if shape.len() < 2 {
            return Ok(vec![1.0; shape.iter().product()]);
        }
        let Some(stored) = self.stored(name, shape)? else { return Ok(Vec::new()) };
        let mut values = vec![0.0; shape.iter().product()];
        for (n, row) in values.chunks_exact_mut(stored.row_len.max(1)).enumerate() {
            encoding::dequantize(stored.dtype, (stored.row)(n), row)?;
        }
        Ok(values)
    }
}
