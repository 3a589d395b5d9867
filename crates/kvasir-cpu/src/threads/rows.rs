//! Parallel loops over rows, and disjoint mutable row slices of one buffer for them.

use crate::threads::pool::ThreadPool;
use crate::threads::worker::Worker;
use std::marker::PhantomData;

/// Rows per work item; up to this many run on the calling thread alone.
const ROWS_PER_ITEM: usize = 4;

/// Whether `for_each_row` runs `n` rows on the calling thread only, without a parallel region.
pub(crate) fn runs_on_caller(n: usize) -> bool {
    n <= ROWS_PER_ITEM
}

/// Runs `job` for each row, in parallel if there are more than a few.
pub(crate) fn for_each_row(threads: &ThreadPool, n: usize, job: &(dyn Fn(&mut Worker, usize) + Sync)) {
    threads.each(n.div_ceil(ROWS_PER_ITEM), &|worker, item| {
        (item * ROWS_PER_ITEM..n.min((item + 1) * ROWS_PER_ITEM)).for_each(|row| job(worker, row));
    });
}

/// Rows of f32 elements at a fixed stride: row `t` starts at `base + t * stride`.
#[derive(Clone, Copy)]
pub(crate) struct StridedRows {
    pub(crate) base: *const f32,
    pub(crate) stride: usize,
}

impl StridedRows {
    /// The rows of `x`, each of `stride` elements, from row `row` on and without their first `at`
    /// elements. Panics if the first of these rows starts outside the slice.
    pub(crate) fn new(x: &[f32], stride: usize, row: usize, at: usize) -> Self {
        Self { base: x[row * stride + at..].as_ptr(), stride }
    }

    /// Address of row `t`.
    #[inline(always)]
    pub(crate) fn row(self, t: usize) -> *const f32 {
        self.base.wrapping_add(t * self.stride)
    }
}

/// Writable rows of f32 elements at a fixed stride.
#[derive(Clone, Copy)]
pub(crate) struct StridedRowsMut {
    pub(crate) base: *mut f32,
    pub(crate) stride: usize,
}

impl StridedRowsMut {
    /// Address of row `t`.
    #[inline(always)]
    pub(crate) fn row(self, t: usize) -> *mut f32 {
        self.base.wrapping_add(t * self.stride)
    }
}

/// A mutable slice of rows that several threads write in disjoint parts.
pub(crate) struct DisjointRows<'a> {
    base: *mut f32,
    len: usize,
    stride: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: references to parts are handed out by unsafe methods whose callers guarantee that they
// are disjoint.
unsafe impl Sync for DisjointRows<'_> {}

impl<'a> DisjointRows<'a> {
    /// Rows of `stride` numbers each in `out`.
    pub(crate) fn new(out: &'a mut [f32], stride: usize) -> Self {
        Self { base: out.as_mut_ptr(), len: out.len(), stride, of: PhantomData }
    }

    /// Numbers `at .. at + len` of a row. Panics if they lie outside the slice.
    ///
    /// # Safety
    /// No other reference to any of them may exist.
    #[allow(clippy::mut_from_ref)] // hands out disjoint parts of one slice
    pub(crate) unsafe fn part(&self, row: usize, at: usize, len: usize) -> &mut [f32] {
        let start = row * self.stride + at;
        assert!(start + len <= self.len, "a part lies outside its slice");
        // SAFETY: within the slice this was made from; the caller guarantees that parts are
        // disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }

    /// The rows from row `row` on, without their first `at` elements. Panics if the first of these
    /// rows starts outside the slice.
    pub(crate) fn strided_rows(&self, row: usize, at: usize) -> StridedRowsMut {
        let start = row * self.stride + at;
        assert!(start < self.len, "a row starts outside its slice");
        StridedRowsMut { base: self.base.wrapping_add(start), stride: self.stride }
    }

    /// A whole row of `stride` numbers.
    ///
    /// # Safety
    /// No other reference to any of it may exist.
    #[allow(clippy::mut_from_ref)] // as above
    pub(crate) unsafe fn row(&self, row: usize) -> &mut [f32] {
        // SAFETY: upheld by the caller.
        unsafe { self.part(row, 0, self.stride) }
    }
}
