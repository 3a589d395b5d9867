//! A growable list of plain values whose first element is aligned to a cache line.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Types for which every bit pattern is valid (numbers and arrays of numbers).
///
/// # Safety
/// Every bit pattern must be a valid value, there must be no padding, and the alignment must be at
/// most 64.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers and floats have no padding and no invalid bit patterns.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: an array is its elements, contiguous and without padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A `Vec` aligned to 64 bytes. A vector or tile row that straddles two cache lines takes twice as
/// long to load.
pub(crate) struct AlignedVec<T: Plain> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> AlignedVec<T> {
    pub(crate) const fn new() -> Self {
        Self { lines: Vec::new(), len: 0, of: PhantomData }
    }

    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.len = 0;
    }

    /// Grows to at least `len` elements; new memory is zeroed. Never shrinks.
    pub(crate) fn grow(&mut self, len: usize) {
        let lines = (len * size_of::<T>()).div_ceil(64);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0; 64]));
        }
        self.len = self.len.max(len);
    }
}

impl<T: Plain> Default for AlignedVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Plain> Deref for AlignedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold `len` values, for which every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
