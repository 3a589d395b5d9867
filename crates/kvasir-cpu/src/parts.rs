//! Rows of one slice that several threads write.

use crate::Team;
use std::marker::PhantomData;

/// Rows that are one piece of work.
const TOGETHER: usize = 4;

/// Whether [`by_rows`] does so many rows on the thread that calls it.
pub(crate) fn by_caller(n: usize) -> bool {
    n <= TOGETHER
}

/// Runs `job` for each row, on all threads if that is worth it.
pub(crate) fn by_rows(team: &Team, n: usize, job: &(dyn Fn(usize) + Sync)) {
    if by_caller(n) {
        return (0..n).for_each(job);
    }
    team.each(n.div_ceil(TOGETHER), &|_, item| (item * TOGETHER..n.min((item + 1) * TOGETHER)).for_each(job));
}

/// Rows of a slice, to be written in parts by several threads.
pub(crate) struct Parts<'a> {
    base: *mut f32,
    len: usize,
    stride: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: it hands out parts only to those who vouch that nobody else has them.
unsafe impl Sync for Parts<'_> {}

impl<'a> Parts<'a> {
    /// Rows `stride` apart in `out`.
    pub(crate) fn new(out: &'a mut [f32], stride: usize) -> Self {
        Self { base: out.as_mut_ptr(), len: out.len(), stride, of: PhantomData }
    }

    /// `len` numbers of a row, from number `at` on.
    ///
    /// # Safety
    /// Nobody else may have any of them meanwhile.
    #[allow(clippy::mut_from_ref)] // that is what this type is for: disjoint parts of one slice
    pub(crate) unsafe fn part(&self, row: usize, at: usize, len: usize) -> &mut [f32] {
        let start = row * self.stride + at;
        assert!(start + len <= self.len, "a part lies outside its slice");
        // SAFETY: within the slice this was made from; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }

    /// A row as long as they are apart.
    ///
    /// # Safety
    /// Nobody else may have any of it meanwhile.
    #[allow(clippy::mut_from_ref)] // as above
    pub(crate) unsafe fn row(&self, row: usize) -> &mut [f32] {
        // SAFETY: as the caller vouches.
        unsafe { self.part(row, 0, self.stride) }
    }
}
