//! Output tensors of a conversion: source tensors, layout changes, dequantize and quantize.

use crate::checkpoint::Checkpoint;
use crate::convert::recurrent_values::{RecurrentChange, RowFactors};
use crate::convert::watch::Watch;
use crate::dtype::DType;
use crate::encoding;
use crate::error::{Error, Result};

/// One output tensor and the source tensors that it is made of.
#[derive(Debug, Clone)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Concatenated along the slowest dimension.
    pub(super) parts: Vec<Part>,
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Source tensor name in the checkpoint.
    pub(super) source: String,
    /// The source holds a stack of matrices whose last two dimensions change places.
    pub(super) transposed: bool,
    pub(super) change: Change,
}

/// Layout change between the Hugging Face and GGUF conventions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    None,
    /// Permutes the rows of each of this many heads from half-split to interleaved RoPE pairs.
    Pairs(usize),
    PlusOne,
    /// MLA: the key rows of each head, transposed. Fields are heads, and key and value rows per
    /// head.
    LatentKeys {
        heads: usize,
        keys: usize,
        values: usize,
    },
    /// MLA: the value rows of each head.
    LatentValues {
        heads: usize,
        keys: usize,
        values: usize,
    },
    /// De-interleaves gate and up: every second row (or element of a bias) from this one on, per
    /// expert.
    EverySecond(usize),
    /// One half of the rows of each matrix of `rows` rows.
    Half {
        rows: usize,
        second: bool,
    },
    /// A tensor of a recurrent layer.
    Recurrent(RecurrentChange),
    /// Rows are multiplied by factors.
    Scaled(RowFactors),
    /// Omits this many rows at the start.
    SkipRows(usize),
    /// Keeps only this many rows at the start.
    FirstRows(usize),
    /// Values supplied by the converter rather than a source tensor: RoPE divisors.
    Computed,
}

impl Part {
    pub(super) fn whole(source: impl Into<String>) -> Self {
        Self { source: source.into(), transposed: false, change: Change::None }
    }

    /// Appends the part's values in encoding `dtype`.
    ///
    /// Copies bytes verbatim if neither encoding nor layout changes; otherwise dequantizes to f32
    /// and quantizes in parallel. The source pages are released afterwards.
    pub(super) fn write(
        &self,
        model: &Checkpoint,
        dtype: DType,
        row: usize,
        given: &[f32],
        watch: &Watch<'_>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if self.change == Change::Computed {
            return encoding::quantize(dtype, given, row, out);
        }
        let view = model.tensor(&self.source);
        let same =
            |v: &crate::TensorView<'_>| v.dtype == dtype && self.change == Change::None && !self.transposed;
        if let Some(view) = view.filter(same) {
            out.extend_from_slice(view.bytes); // verbatim
            return Ok(());
        }
        if dtype == DType::I32 {
            return self.write_integers(model, out);
        }
        let (shape, values) = model.dense(&self.source)?;
        let values = if self.transposed { transpose_experts(&shape, &values) } else { values };
        let inner = if self.transposed { shape[1] } else { shape.last().copied().unwrap_or(1) };
        let values = self.changed(values, inner);
        quantize_in_parallel(dtype, &values, row, watch, out)
            .map_err(|e| Error::at(format!("tensor {}", self.source), e))?;
        model.release(&self.source, 0..usize::MAX);
        Ok(())
    }

    /// Appends the part's integers as little-endian `i32`.
    fn write_integers(&self, model: &Checkpoint, out: &mut Vec<u8>) -> Result<()> {
        let bad = |why: &str| Error::at(format!("tensor {}", self.source), why);
        for value in model.integers(&self.source)?.ok_or_else(|| bad("is missing"))? {
            let value = i32::try_from(value).map_err(|_| bad("has an integer that does not fit 32 bits"))?;
            out.extend_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn changed(&self, values: Vec<f32>, inner: usize) -> Vec<f32> {
        let rows = || values.chunks_exact(inner.max(1));
        match self.change {
            Change::None | Change::Computed => values,
            Change::SkipRows(skipped) => rows().skip(skipped).flatten().copied().collect(),
            Change::FirstRows(count) => rows().take(count).flatten().copied().collect(),
            Change::PlusOne => values.into_iter().map(|v| v + 1.0).collect(),
            Change::Pairs(heads) => {
                let all: Vec<&[f32]> =
                    if values.len() == inner { values.chunks(1).collect() } else { rows().collect() };
                let size = all.len() / heads.max(1);
                let half = size / 2;
                let order = (0..all.len()).map(|r| {
                    let (head, i) = (r / size.max(1), r % size.max(1));
                    head * size + i % 2 * half + i / 2
                });
                order.flat_map(|r| all.get(r).copied().unwrap_or_default()).copied().collect()
            }
            Change::LatentKeys { heads, keys, values: v } => {
                let mut out = Vec::with_capacity(heads * keys * inner);
                for head in 0..heads {
                    let first = head * (keys + v);
                    for c in 0..inner {
                        out.extend((0..keys).map(|k| values[(first + k) * inner + c]));
                    }
                }
                out
            }
            Change::LatentValues { keys, values: v, .. } => rows()
                .enumerate()
                .filter(|(r, _)| r % (keys + v) >= keys)
                .flat_map(|(_, row)| row)
                .copied()
                .collect(),
            Change::Half { rows: count, second } => {
                let matrices = values.chunks_exact((count * inner).max(1));
                matrices
                    .flat_map(|matrix| {
                        if second { &matrix[count / 2 * inner..] } else { &matrix[..count / 2 * inner] }
                    })
                    .copied()
                    .collect()
            }
            Change::Recurrent(change) => change.apply(values, inner),
            Change::Scaled(factors) => factors.apply(values, inner),
            Change::EverySecond(from) if self.source.ends_with("_bias") => {
                values.iter().skip(from).step_by(2).copied().collect()
            }
            Change::EverySecond(from) => rows().skip(from).step_by(2).flatten().copied().collect(),
        }
    }
}

/// Transposes each expert's matrix: [expert, in, out] to [expert, out, in].
fn transpose_experts(shape: &[usize], values: &[f32]) -> Vec<f32> {
    let [_, from, to] = shape else { return values.to_vec() };
    let mut out = Vec::with_capacity(values.len());
    for expert in values.chunks_exact((from * to).max(1)) {
        for o in 0..*to {
            out.extend((0..*from).map(|i| expert[i * to + o]));
        }
    }
    out
}

/// Values that a thread quantizes between two looks at the watch: some milliseconds.
const STRIDE: usize = 1 << 18;

/// Quantizes whole rows on all available threads; the output is that of `encoding::quantize`.
pub(super) fn quantize_in_parallel(
    dtype: DType,
    values: &[f32],
    row: usize,
    watch: &Watch<'_>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = values.len() / row.max(1);
    if rows < 64 || !values.len().is_multiple_of(row.max(1)) {
        return encoding::quantize(dtype, values, row, out);
    }
    let each = rows.div_ceil(threads).max(1).saturating_mul(row);
    let stride = (STRIDE / row.max(1)).max(1).saturating_mul(row);
    let encode = |chunk: &[f32]| {
        let mut bytes = Vec::new();
        for part in chunk.chunks(stride) {
            encoding::quantize(dtype, part, row, &mut bytes)?;
            watch.advance(part.len())?;
        }
        Ok(bytes)
    };
    let encoded: Vec<Result<Vec<u8>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = values.chunks(each).map(|chunk| scope.spawn(move || encode(chunk))).collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(Error::at("", "encoding failed"))))
            .collect()
    });
    for bytes in encoded {
        out.extend(bytes?);
    }
    Ok(())
}
