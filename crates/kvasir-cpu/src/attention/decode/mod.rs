//! Decode kernels of attention (GEMV): few query rows per KV head, K and V read in place.
//!
//! - `widened.rs`: operands widened to f32, in the summation order of AMX. Per 32 numbers one FMA
//!   chain runs over the even and one over the odd; the two are added, then added to the sum.
//!   `gemv.rs` picks their vector width.
//! - `bf16_dot.rs`: bf16 pair dot products, in the order of `gemm::avx512_bf16`.

pub(crate) mod bf16_dot;
pub(crate) mod gemv;
pub(crate) mod widened;

use crate::attention::gemm::operands::KeyRows;
use crate::attention::scratch::StagedKv;
use crate::prefetch::next_head::NextHead;

/// Numbers of bf16 in a cache line, and positions per step of P V.
pub(crate) const LINE: usize = 32;

/// The query rows of a block that belong to one KV head.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl HeadRows {
    pub(crate) fn end(self) -> usize {
        self.first + self.count
    }
}

/// One head's K rows of a chunk, of which the first `visible` positions are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct VisibleKeys<'k> {
    pub(crate) keys: &'k KeyRows,
    pub(crate) visible: usize,
}

/// One head's V rows of a chunk, which must be readable: the addresses of the first head's, and the
/// bytes from there.
#[derive(Clone, Copy)]
pub(crate) struct ValueRows<'v> {
    pub(crate) rows: &'v [*const u16],
    pub(crate) offset: usize,
    /// Numbers per row.
    pub(crate) width: usize,
}

/// Per head its first `visible` keys, what to prefetch beside them, and its `per_head` query rows.
pub(crate) fn heads(
    kv: &StagedKv,
    visible: usize,
    per_head: usize,
) -> impl Iterator<Item = (VisibleKeys<'_>, NextHead, HeadRows)> {
    let mut next = kv.prefetch.keys;
    kv.keys.heads.iter().enumerate().map(move |(i, keys)| {
        next = if i + 1 < kv.keys.heads.len() { next.next_head() } else { kv.prefetch.values };
        (VisibleKeys { keys, visible }, next, HeadRows { first: i * per_head, count: per_head })
    })
}
