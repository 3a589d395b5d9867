use crate::tile::LANES;
use std::marker::PhantomData;

/// Matrices that take the same rows and are multiplied at once at most: those of queries, keys and values.
pub(crate) const AT_ONCE: usize = 3;

/// Where a matmul's results go: rows of floats, `stride` apart, of which several threads write parts.
pub(crate) struct Output<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    width: usize,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: only those write who vouch that nobody else writes the same numbers.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Results of `rows` rows of `width` numbers, in `out`.
    pub(crate) fn new(out: &'a mut [f32], rows: usize, stride: usize, width: usize) -> Self {
        assert!(width <= stride && rows * stride <= out.len() + (stride - width), "results fit");
        Self { base: out.as_mut_ptr(), stride, rows, width, of: PhantomData }
    }

    /// Adds some numbers to each row.
    pub(crate) fn add(&mut self, to_each: &[f32]) {
        for row in 0..self.rows {
            // SAFETY: the row's first `width` numbers lie within the slice that this was made from, which nobody else has.
            let y = unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride), self.width) };
            y.iter_mut().zip(to_each).for_each(|(y, v)| *y += v);
        }
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Asks for the place of outputs `first .. first + 16` of a row, to be written soon.
    #[inline(always)]
    pub(crate) fn fetch(&self, row: usize, first: usize) {
        #[cfg(target_arch = "x86_64")]
        if row < self.rows && first < self.width {
            // SAFETY: the place lies within the slice; on processors without the instruction it does nothing.
            unsafe {
                let place = self.base.add(row * self.stride + first);
                std::arch::asm!("prefetchw [{}]", in(reg) place, options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// Where a vector kernel puts outputs `first .. first + 16` of `row` and of the rows after it. It must not write rows that do not exist, and vouches
    /// for the others as for [`store`](Self::store).
    #[inline(always)]
    pub(crate) fn place(&self, row: usize, first: usize) -> Place {
        let lanes = self.width.saturating_sub(first).min(LANES);
        let at = self.base.wrapping_add(row * self.stride + first);
        Place { at, step: self.stride, lanes: ((1u32 << lanes) - 1) as u16 }
    }

    /// Stores outputs `first .. first + 16` of a row, those that exist.
    ///
    /// # Safety
    /// Nobody else may write them meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, row: usize, first: usize, sums: &[f32; LANES]) {
        if row >= self.rows || first >= self.width {
            return;
        }
        // SAFETY: the row and its first `width` numbers lie within the slice that this was made from; the caller vouches for the rest.
        unsafe {
            let to = self.base.add(row * self.stride + first);
            match self.width - first {
                // A length that the compiler knows becomes one store.
                LANES.. => to.cast::<[f32; LANES]>().write_unaligned(*sums),
                rest => std::ptr::copy_nonoverlapping(sums.as_ptr(), to, rest),
            }
        }
    }
}

/// 16 numbers of each row, rows `step` numbers apart; those exist that `lanes` has a bit for.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: *mut f32,
    pub(crate) step: usize,
    pub(crate) lanes: u16,
}

/// Rows of a block whose activations stay in the second-level cache, `row_bytes` each: whole tiles, and blocks of about one size.
pub(crate) fn token_blocks(rows: usize, row_bytes: usize) -> usize {
    let most = (1024 * 1024 / row_bytes.max(1)).clamp(64, 1024);
    rows.div_ceil(rows.div_ceil(most).max(1)).next_multiple_of(32).max(32)
}
