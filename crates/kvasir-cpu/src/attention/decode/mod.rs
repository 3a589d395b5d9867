//! Decode kernels of attention (GEMV): few query rows per KV head, K and V read in place.
//!
//! - `gemv.rs`: operands widened to f32, in the summation order of AMX. Per 32 numbers one FMA
//!   chain runs over the even and one over the odd; the two are added, then added to the sum.
//! - `bf16_dot.rs`: bf16 pair dot products, in the order of `kernel::bf16_dot`.

pub(crate) mod bf16_dot;
pub(crate) mod gemv;

use crate::attention::staged_kv::{KeyRows, StagedKeys, StagedKv};
use crate::attention::work::ScoredBlock;
use crate::prefetch::next_head::NextHead;
use std::ops::Range;

/// Numbers of bf16 in a cache line, and positions per step of P V.
pub(crate) const LINE: usize = 32;

/// One head's K rows of a chunk, of which the first `visible` positions are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct VisibleKeys<'k> {
    pub(crate) keys: &'k KeyRows,
    pub(crate) visible: usize,
    /// Rows to prefetch while this product runs.
    pub(crate) next_head: NextHead,
}

/// One head's V rows of a chunk, which must be readable: the addresses of the first head's, and the
/// bytes from there.
#[derive(Clone, Copy)]
pub(crate) struct ValueRows<'v> {
    pub(crate) rows: &'v [*const u16],
    pub(crate) offset: usize,
    /// Numbers per row.
    pub(crate) width: usize,
    /// Rows to prefetch while this product runs.
    pub(crate) next_head: &'v NextHead,
}

/// The visible keys and the query rows of each head of a block.
pub(crate) fn heads<'k>(
    StagedKv { keys: StagedKeys { heads, .. }, prefetch, .. }: &'k StagedKv,
    now: ScoredBlock<'_>,
) -> impl Iterator<Item = (VisibleKeys<'k>, Range<usize>)> {
    let (mut next_head, visible, count) = (prefetch.keys, now.seen, now.block().per_head);
    heads.iter().enumerate().map(move |(i, keys)| {
        next_head = if i + 1 < heads.len() { next_head.next_head() } else { prefetch.values };
        (VisibleKeys { keys, visible, next_head }, i * count..(i + 1) * count)
    })
}
