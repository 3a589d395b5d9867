//! The output side of every GEMM and GEMV: strided f32 rows that threads write in disjoint
//! 16-output pieces.
//!
//! Invariant: work items write disjoint outputs. `Output` is `Sync` only because its writing
//! methods are unsafe and ask the caller for that. Also: row blocking for the L2 cache
//! (`token_blocks`).

use crate::isa::tile::LANES;
use std::marker::PhantomData;

/// Matrices with the same operand that are multiplied as one parallel region, at most: Q, K and V.
pub(crate) const AT_ONCE: usize = 3;

/// The result of a matrix product: `rows` rows of `width` f32, `stride` numbers apart, written by
/// several threads.
pub(crate) struct Output<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    width: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: writing is unsafe; its callers guarantee that no two threads write the same numbers.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// A result of `rows` rows of `width` numbers in `out`. Panics if they do not fit.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, stride: usize, width: usize) -> Self {
        assert!(width <= stride && rows * stride <= out.len() + (stride - width), "results fit");
        Self { base: out.as_mut_ptr(), stride, rows, width, of: PhantomData }
    }

    /// Adds a bias to each row.
    pub(crate) fn add(&mut self, to_each: &[f32]) {
        for row in 0..self.rows {
            // SAFETY: the row's first `width` numbers lie within the slice that this was made from,
            // which is borrowed exclusively.
            let y = unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride), self.width) };
            y.iter_mut().zip(to_each).for_each(|(y, v)| *y += v);
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Prefetches outputs `first .. first + 16` of a row for writing (`prefetchw`).
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize, first: usize) {
        #[cfg(target_arch = "x86_64")]
        if row < self.rows && first < self.width {
            // SAFETY: the address lies within the slice; CPUs without the instruction treat it as a
            // no-op.
            unsafe {
                let place = self.base.add(row * self.stride + first);
                std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// Stores outputs `first .. first + 16` of a row; lanes past `width` and rows past the end are
    /// dropped.
    ///
    /// # Safety
    /// No other thread may write them concurrently.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, row: usize, first: usize, sums: &[f32; LANES]) {
        if row >= self.rows || first >= self.width {
            return;
        }
        // SAFETY: the row and its first `width` numbers lie within the slice that this was made
        // from; the caller excludes concurrent writes.
        unsafe {
            let to = self.base.add(row * self.stride + first);
            match self.width - first {
                // A constant length compiles to one vector store.
                LANES.. => to.cast::<[f32; LANES]>().write_unaligned(*sums),
                rest => std::ptr::copy_nonoverlapping(sums.as_ptr(), to, rest),
            }
        }
    }
}

/// Rows per block so that the activations of a block (`row_bytes` each) stay in L2: whole tiles,
/// blocks of similar size.
pub(crate) fn token_blocks(rows: usize, row_bytes: usize) -> usize {
    let max_rows = (1024 * 1024 / row_bytes.max(1)).clamp(64, 1024);
    rows.div_ceil(rows.div_ceil(max_rows).max(1)).next_multiple_of(32).max(32)
}
