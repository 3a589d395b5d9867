use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Numbers, and arrays of them, for which every pattern of bits stands.
///
/// # Safety
/// All bytes zero must be a value, every byte must be part of it, and it must need no alignment above 64.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: an array holds its elements one after the other.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A list that begins with a cache line: a vector or a row of a tile that straddles two lines takes twice as long.
pub(crate) struct Lines<T: Plain> {
    lines: Vec<Line>,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Lines<T> {
    pub(crate) const fn new() -> Self {
        Self { lines: Vec::new(), len: 0, of: PhantomData }
    }

    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.len = 0;
    }

    /// As many as `len`, if there were fewer; new ones are zeros.
    pub(crate) fn grow(&mut self, len: usize) {
        let lines = (len * size_of::<T>()).div_ceil(64);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line([0; 64]));
        }
        self.len = self.len.max(len);
    }
}

impl<T: Plain> Deref for Lines<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold `len` values, which any bytes are.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
