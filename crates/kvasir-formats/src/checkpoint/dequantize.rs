//! Dequantizes weights of a checkpoint to f32, with their companion scales: block-scaled FP8, and
//! MXFP4 as stored by gpt-oss.

use crate::checkpoint::Checkpoint;
use crate::config::quantization::Scheme;
use crate::dtype::DType;
use crate::encoding;
use crate::error::{Error, Result};
use crate::tensor::TensorView;

impl Checkpoint {
    /// Dequantizes a weight to f32, row-major, with companion scales applied. Returns its shape.
    ///
    /// Companions are `NAME_scale_inv` for block-scaled FP8, and for MXFP4 the pair `NAME_blocks`
    /// and `NAME_scales`, whose weight has the shape [experts, out, in].
    pub fn dense(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let shape = match (self.tensor(name), self.mxfp4(name)?) {
            (Some(view), _) => view.shape.to_vec(),
            (None, Some((_, scales))) => {
                let (last, outer) = scales.shape.split_last().unwrap_or((&0, &[]));
                [outer, &[last * 32]].concat()
            }
            (None, None) => {
                return Err(Error::at(format!("tensor {name}"), "is missing").in_file(&self.path));
            }
        };
        let mut values = vec![0.0; shape.iter().product()];
        let row_len = shape.last().copied().unwrap_or(1).max(1);
        values.chunks_mut(row_len).enumerate().try_for_each(|(n, row)| self.dense_row(name, n, row))?;
        Ok((shape, values))
    }

    /// Dequantizes row `n` of a weight, with all leading dimensions flattened. Allocates only for
    /// companion scales.
    pub fn dense_row(&self, name: &str, n: usize, out: &mut [f32]) -> Result<()> {
        let Some(view) = self.tensor(name) else {
            let pair = self.mxfp4(name)?;
            let (blocks, scales) =
                pair.ok_or_else(|| Error::at(format!("tensor {name}"), "is missing").in_file(&self.path))?;
            let across = out.len() / 32;
            let codes = blocks.rows(n * across, across)?;
            return mxfp4_row(codes, scales.rows(n, 1)?, out).ok_or_else(|| {
                Error::at(format!("tensor {name}"), format!("has rows of {} elements", scales.row_len() * 32))
            });
        };
        let row = view.rows(n, 1)?;
        encoding::dequantize(view.dtype, row, out).map_err(|e| Error::at(view.name, e))?;
        if view.dtype == DType::F8E4M3 {
            let (scales, block_rows, block_cols) = self.block_scales(&view)?;
            let mut across = vec![0.0; scales.row_len()];
            encoding::dequantize(scales.dtype, scales.rows(n / block_rows, 1)?, &mut across)?;
            for (part, scale) in out.chunks_mut(block_cols).zip(across) {
                part.iter_mut().for_each(|v| *v *= scale);
            }
        }
        Ok(())
    }

    /// The scales of a block-scaled FP8 matrix, and the block's rows and columns. Edge blocks may
    /// be partial.
    pub fn block_scales(&self, weight: &TensorView<'_>) -> Result<(TensorView<'_>, usize, usize)> {
        let fail = |why: String| Error::at(format!("tensor {}", weight.name), why).in_file(&self.path);
        let Some(Scheme::Fp8Blocks { rows, cols }) = self.quantization.as_ref().map(|q| q.scheme) else {
            return Err(fail("is FP8, but the config has no fp8 `quantization_config`".into()));
        };
        let scales = self.tensor(&format!("{}_scale_inv", weight.name));
        let scales = scales.ok_or_else(|| fail("has no scales tensor (`…_scale_inv`)".into()))?;
        let [r, c] = weight.shape else { return Err(fail("is not a matrix".into())) };
        // Some checkpoints store power-of-two (E8M0) scales as plain bytes.
        let dtype = if scales.dtype == DType::U8 { DType::F8E8M0 } else { scales.dtype };
        let scales = TensorView { dtype, ..scales };
        if scales.shape != [r.div_ceil(rows), c.div_ceil(cols)] {
            return Err(fail(format!(
                "shape {:?} does not match the shape of its scales, {:?}",
                weight.shape, scales.shape
            )));
        }
        Ok((scales, rows, cols))
    }

    /// The block and scale tensors of an MXFP4 weight as stored by gpt-oss.
    ///
    /// Blocks: [experts, out, in / 32, 16] bytes, value `2j` in the low nibble of byte `j`. Scales:
    /// one E8M0 byte per block.
    pub fn mxfp4(&self, name: &str) -> Result<Option<(TensorView<'_>, TensorView<'_>)>> {
        let Some(blocks) = self.tensor(&format!("{name}_blocks")) else { return Ok(None) };
        let fail = |why: String| Error::at(format!("tensor {name}_blocks"), why).in_file(&self.path);
        let scales = self.tensor(&format!("{name}_scales"));
        let scales = scales.ok_or_else(|| fail("has no scales tensor (`…_scales`)".into()))?;
        let fits = blocks.shape.split_last().is_some_and(|(&n, outer)| n == 16 && outer == scales.shape);
        let powers = matches!(scales.dtype, DType::U8 | DType::F8E8M0);
        if !fits || scales.shape.is_empty() || blocks.dtype != DType::U8 || !powers {
            return Err(fail(format!(
                "shape {:?} does not match the shape of its scales, {:?}",
                blocks.shape, scales.shape
            )));
        }
        Ok(Some((blocks, scales)))
    }
}

/// `out = E2M1(code) * 2^scale` per block of 32; the low nibble of byte `j` is value `2j`. `None`
/// if lengths disagree.
fn mxfp4_row(codes: &[u8], scales: &[u8], out: &mut [f32]) -> Option<()> {
    let blocks = codes.as_chunks::<16>().0;
    let fits = blocks.len() == scales.len() && out.len() == blocks.len() * 32;
    for ((block, &e), out) in blocks.iter().zip(scales).zip(out.as_chunks_mut::<32>().0) {
        let d = encoding::e8m0_half(e);
        for (&q, pair) in block.iter().zip(out.as_chunks_mut::<2>().0) {
            let value = |code: u8| f32::from(encoding::E2M1_DOUBLED[usize::from(code & 0xf)]) * d;
            *pair = [value(q), value(q >> 4)];
        }
    }
    fits.then_some(())
}
