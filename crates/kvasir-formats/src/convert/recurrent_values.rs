//! Value changes of recurrent layers' tensors in the conversion to GGUF: decay rates, the order of
//! value heads, and factors that are multiplied into weights.

use kvasir_program::HeadLocation;

/// Head counts and widths of a gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeltaSizes {
    pub(super) key_heads: usize,
    /// Value heads per key head.
    pub(super) ratio: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
}

/// How the values of a recurrent layer's tensor change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum RecurrentChange {
    /// A_log becomes -exp(A_log).
    DecayRate,
    /// Permutes value heads from grouped to tiled order.
    TileHeads(DeltaSizes, HeadLocation),
    /// Selects, from rows ordered by key head, all q, then all k, then all v.
    SelectQkv(DeltaSizes),
    /// Selects, from rows ordered by key head, all z.
    SelectZ(DeltaSizes),
}

/// Factors of consecutive ranges of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowFactors {
    pub(super) rows: [usize; 5],
    pub(super) factors: [f64; 5],
}

impl DeltaSizes {
    pub(super) fn key_width(self) -> usize {
        self.key_heads * self.key_dim
    }

    pub(super) fn value_width(self) -> usize {
        self.key_heads * self.ratio * self.value_dim
    }

    /// The grouped index of each value head, in tiled order.
    fn tiled(self) -> impl Iterator<Item = usize> {
        (0..self.ratio).flat_map(move |j| (0..self.key_heads).map(move |key| key * self.ratio + j))
    }
}

impl RecurrentChange {
    /// Applies the change. Rows have `inner` elements; a vector is one row.
    pub(super) fn apply(self, values: Vec<f32>, inner: usize) -> Vec<f32> {
        match self {
            Self::DecayRate => values.into_iter().map(|v| -v.exp()).collect(),
            Self::TileHeads(sizes, HeadLocation::DecayRates) => {
                let rates: Vec<f32> = values.into_iter().map(|v| -v.exp()).collect();
                tile(&rates, sizes, 0, 1)
            }
            Self::TileHeads(sizes, HeadLocation::Rows) => {
                // A vector has one element per head.
                let heads = sizes.key_heads * sizes.ratio;
                tile(&values, sizes, 0, values.len() / heads.max(1))
            }
            Self::TileHeads(sizes, HeadLocation::RowsAfterKeys) => {
                let row = values.len() / (2 * sizes.key_width() + sizes.value_width()).max(1);
                tile(&values, sizes, 2 * sizes.key_width() * row, sizes.value_dim * row)
            }
            Self::TileHeads(sizes, HeadLocation::Columns) => {
                let rows = values.chunks_exact(inner.max(1));
                rows.flat_map(|row| tile(row, sizes, 0, sizes.value_dim)).collect()
            }
            Self::SelectQkv(sizes) => {
                let (dim, per_key_head) = (sizes.key_dim, sizes.ratio * sizes.value_dim);
                [(0, dim), (dim, dim), (2 * dim, per_key_head)]
                    .into_iter()
                    .flat_map(|(start, len)| rows_of_key_heads(&values, inner, sizes, start, len))
                    .collect()
            }
            Self::SelectZ(sizes) => {
                let per_key_head = sizes.ratio * sizes.value_dim;
                rows_of_key_heads(&values, inner, sizes, 2 * sizes.key_dim + per_key_head, per_key_head)
            }
        }
    }
}

/// Permutes value heads of `len` elements from grouped to tiled order. The first `start` elements
/// stay in place.
fn tile(values: &[f32], sizes: DeltaSizes, start: usize, len: usize) -> Vec<f32> {
    let (before, heads) = values.split_at(start.min(values.len()));
    let head = |n: usize| heads.get(n * len..(n + 1) * len).unwrap_or_default();
    before.iter().copied().chain(sizes.tiled().flat_map(|n| head(n).iter().copied())).collect()
}

/// Rows `start .. start + len` of each key head.
fn rows_of_key_heads(values: &[f32], inner: usize, sizes: DeltaSizes, start: usize, len: usize) -> Vec<f32> {
    let rows = 2 * (sizes.key_dim + sizes.ratio * sizes.value_dim);
    let heads = values.chunks_exact((rows * inner).max(1));
    heads.flat_map(|head| &head[start * inner..(start + len) * inner]).copied().collect()
}

impl RowFactors {
    /// Multiplies each row by its factor. Rows of a matrix have `inner` elements, those of a vector
    /// one.
    pub(super) fn apply(self, mut values: Vec<f32>, inner: usize) -> Vec<f32> {
        let rows: usize = self.rows.iter().sum();
        let row = if values.len() == rows { 1 } else { inner };
        let mut rest = values.as_mut_slice();
        for (count, factor) in self.rows.into_iter().zip(self.factors) {
            let (part, others) = rest.split_at_mut((count * row).min(rest.len()));
            part.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
            rest = others;
        }
        values
    }
}
