//! Operands of the attention GEMMs, and the work interleaved with them (software pipelining).

/// K rows of a chunk: four times 16 rows of bf16, each padded to whole steps of 32 numbers.
#[derive(Clone, Copy)]
pub(crate) struct KeyRows {
    pub(crate) base: [*const u8; 4],
    /// Row stride in bytes, for each 16 rows.
    pub(crate) stride: [usize; 4],
}

/// Work to interleave with the products of `S = Q K^T` (software pipelining).
pub(crate) trait Interleaved {
    /// Does a little work beside one tile product.
    ///
    /// # Safety
    /// The machine must have AMX and AVX-512.
    unsafe fn step(&mut self);
    /// Does work that is due less often: called before `products` products; `last` says whether
    /// they are of the last head.
    ///
    /// # Safety
    /// As above.
    unsafe fn before(&mut self, last: bool, products: usize);
}

/// Number of calls of [`Interleaved::before`] for one head's K of `steps` times 32 numbers.
pub(crate) fn prefetch_points(steps: usize) -> usize {
    2 * steps
}

/// Operands of `O += P V` for one chunk: two tiles of attention weights P, and two tiles of V for
/// each 16 columns.
#[derive(Clone, Copy)]
pub(crate) struct ChunkTiles {
    pub(crate) weights: *const u8,
    pub(crate) values: *const u8,
}

/// Operands of `S = Q K^T` on AMX, for the heads of a block.
#[derive(Clone, Copy)]
pub(crate) struct ScoreOperands<'k> {
    pub(crate) keys: &'k [KeyRows],
    /// With several heads, scores from this position on are undefined.
    pub(crate) visible: usize,
    /// What is read behind the last head, per 16 positions.
    pub(crate) behind: &'k [*const u8; 4],
    /// A query tile per step of 32 numbers.
    pub(crate) queries: *const u8,
    /// Columns of a query tile per head, head after head.
    pub(crate) rows_per_head: usize,
    pub(crate) steps: usize,
}
