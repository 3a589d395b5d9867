//! How values of recurrent layers change on the way to GGUF: decay rates, the order of value heads, and
//! factors that are multiplied into weights.

use kvasir_program::HeadOrder;

/// Sizes of a gated delta rule.
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
pub(super) enum Recurrence {
    /// A_log becomes -exp(A_log).
    Rate,
    /// Value heads are tiled over the key heads.
    Tiled(DeltaSizes, HeadOrder),
    /// Rows by key head: all q, then all k, then all v.
    Inputs(DeltaSizes),
    /// Rows by key head: all z.
    Gates(DeltaSizes),
}

/// Factors of consecutive ranges of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowFactors {
    pub(super) rows: [usize; 5],
    pub(super) factors: [f64; 5],
}

impl DeltaSizes {
    pub(super) fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    pub(super) fn values(self) -> usize {
        self.key_heads * self.ratio * self.value_dim
    }

    /// Value heads in tiled order: the grouped number of each.
    fn tiled(self) -> impl Iterator<Item = usize> {
        (0..self.ratio).flat_map(move |j| (0..self.key_heads).map(move |key| key * self.ratio + j))
    }
}

impl Recurrence {
    /// Applies the change to values whose rows have `inner` elements; vectors are one row.
    pub(super) fn applied(self, values: Vec<f32>, inner: usize) -> Vec<f32> {
        match self {
            Self::Rate => values.into_iter().map(|v| -v.exp()).collect(),
            Self::Tiled(sizes, HeadOrder::Rates) => {
                let rates: Vec<f32> = values.into_iter().map(|v| -v.exp()).collect();
                tile(&rates, sizes, 0, 1)
            }
            Self::Tiled(sizes, HeadOrder::Rows) => {
                // A vector has one number per head.
                let heads = sizes.key_heads * sizes.ratio;
                tile(&values, sizes, 0, values.len() / heads.max(1))
            }
            Self::Tiled(sizes, HeadOrder::BehindKeys) => {
                let row = values.len() / (2 * sizes.keys() + sizes.values()).max(1);
                tile(&values, sizes, 2 * sizes.keys() * row, sizes.value_dim * row)
            }
            Self::Tiled(sizes, HeadOrder::Columns) => {
                let rows = values.chunks_exact(inner.max(1));
                rows.flat_map(|row| tile(row, sizes, 0, sizes.value_dim)).collect()
            }
            Self::Inputs(sizes) => {
                let (dim, of_head) = (sizes.key_dim, sizes.ratio * sizes.value_dim);
                [(0, dim), (dim, dim), (2 * dim, of_head)]
                    .into_iter()
                    .flat_map(|(start, len)| of_key_heads(&values, inner, sizes, start, len))
                    .collect()
            }
            Self::Gates(sizes) => {
                let of_head = sizes.ratio * sizes.value_dim;
                of_key_heads(&values, inner, sizes, 2 * sizes.key_dim + of_head, of_head)
            }
        }
    }
}

/// Permutes the value heads behind the first `from` values; a head has `len` values.
fn tile(values: &[f32], sizes: DeltaSizes, from: usize, len: usize) -> Vec<f32> {
    let (before, heads) = values.split_at(from.min(values.len()));
    let head = |n: usize| heads.get(n * len..(n + 1) * len).unwrap_or_default();
    before.iter().copied().chain(sizes.tiled().flat_map(|n| head(n).iter().copied())).collect()
}

/// Rows `start .. start + len` of each key head.
fn of_key_heads(values: &[f32], inner: usize, sizes: DeltaSizes, start: usize, len: usize) -> Vec<f32> {
    let rows = 2 * (sizes.key_dim + sizes.ratio * sizes.value_dim);
    let heads = values.chunks_exact((rows * inner).max(1));
    heads.flat_map(|head| &head[start * inner..(start + len) * inner]).copied().collect()
}

impl RowFactors {
    /// Multiplies values whose rows have `inner` elements; a vector has one per row.
    pub(super) fn applied(self, mut values: Vec<f32>, inner: usize) -> Vec<f32> {
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
