//! `TailBuffered`: an append-mostly `u32` list whose newest entries are stored inline and flushed
//! to the heap `Vec` in batches.
//!
//! A decode step appends one entry to thousands of lists. Without the inline tail each append would
//! miss the cache on the end of another heap allocation. The tail is flushed when the length
//! reaches a multiple of `NEAR`, so lists of different lengths flush in different steps. Its test
//! compares it with a `Vec`.

use crate::shared::runs::common_prefix;
use std::borrow::Cow;
use std::ops::{Index, Range};

/// A list of tokens, blocks or slots that grows by one in every step; its newest entries are
/// inline. The ends of thousands of heap lists lie in as many pages, each a cache miss per step.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct TailBuffered {
    /// Number of inline entries.
    count: u16,
    /// Flush threshold: with so many inline entries the next push flushes them to the heap part.
    full: u16,
    newest: u32,
    /// The heap part.
    far: Vec<u32>,
    near: [u32; Self::NEAR],
}

impl Default for TailBuffered {
    fn default() -> Self {
        Self { far: Vec::new(), count: 0, full: Self::NEAR as u16, newest: 0, near: [0; Self::NEAR] }
    }
}

impl TailBuffered {
    /// Inline capacity: with the three header fields in front, 128 bytes (the `Vec` not counted).
    pub const NEAR: usize = 30;

    /// A list with these entries, all in the heap part.
    pub fn new(list: Vec<u32>) -> Self {
        let mut list = Self { far: list, ..Self::default() };
        list.note_end();
        list
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> u32 {
        self.far.len() as u32 + u32::from(self.count)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last entry, without touching the heap part; 0 if the list is empty.
    #[inline]
    pub fn newest(&self) -> u32 {
        self.newest
    }

    /// The heap part: the leading entries.
    #[inline]
    pub fn far(&self) -> &[u32] {
        &self.far
    }

    /// The inline part: everything behind [`TailBuffered::far`].
    #[inline]
    pub fn near(&self) -> &[u32] {
        &self.near[..self.count as usize]
    }

    /// The entry at `at`, if it exists.
    pub fn get(&self, at: u32) -> Option<u32> {
        match at.checked_sub(self.far.len() as u32) {
            Some(at) => self.near().get(at as usize).copied(),
            None => self.far.get(at as usize).copied(),
        }
    }

    /// Length of the common prefix with another list.
    pub fn common_prefix(&self, other: &[u32]) -> usize {
        match common_prefix(&self.far, other) {
            same if same == self.far.len() => same + common_prefix(self.near(), &other[same..]),
            same => same,
        }
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.range(0..self.len())
    }

    /// The entries in `range`, clamped to the list.
    pub fn range(&self, range: Range<u32>) -> impl Iterator<Item = u32> + Clone + '_ {
        let (far, near) = self.parts(range);
        far.iter().chain(near).copied()
    }

    /// Reserves heap capacity for `more` entries.
    pub fn reserve(&mut self, more: usize) {
        self.far.reserve(self.count as usize + more);
    }

    /// Whether the next push flushes the inline part. That happens when the length reaches a
    /// multiple of `NEAR`, so lists of different lengths flush in different steps.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.count == self.full
    }

    /// Prefetch by a dummy load of the end of the heap part. Doing so for several lists first
    /// overlaps their cache misses.
    #[inline]
    pub fn touch_end(&self) {
        std::hint::black_box(self.far.last().copied());
    }

    /// Appends one entry; flushes the inline part when due.
    #[inline]
    pub fn push(&mut self, one: u32) {
        if self.is_due() {
            self.gather();
        }
        if let Some(place) = self.near.get_mut(self.count as usize) {
            *place = one;
            self.count += 1;
        }
        self.newest = one;
    }

    /// Keeps the first `len` entries.
    pub fn truncate(&mut self, len: u32) {
        self.count = (len as usize).saturating_sub(self.far.len()).min(self.count.into()) as u16;
        self.far.truncate(len as usize);
        self.note_end();
    }

    /// All entries as one slice; flushes the inline part.
    pub fn gather(&mut self) -> &[u32] {
        self.far.extend_from_slice(&self.near[..self.count as usize]);
        self.count = 0;
        self.note_full();
        &self.far
    }

    /// Flushes, then edits the whole list as a `Vec`.
    pub fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        self.gather();
        let result = edit(&mut self.far);
        self.note_end();
        result
    }

    /// The entries from `from` on as one slice; flushes only if they span both parts.
    #[inline]
    pub fn since(&mut self, from: u32) -> &[u32] {
        let far = self.far.len() as u32;
        if from < far && self.count > 0 {
            self.gather();
        }
        match from.checked_sub(far) {
            Some(from) if self.count > 0 => self.near().get(from as usize..).unwrap_or(&[]),
            _ => self.far.get(from as usize..).unwrap_or(&[]),
        }
    }

    /// The first `count` entries, as far as they lie in the heap part.
    pub fn first(&self, count: u32) -> &[u32] {
        self.far.get(..count as usize).unwrap_or(&self.far)
    }

    /// Appends the entries in `range`, clamped to the list, to `to`.
    pub fn copy(&self, range: Range<u32>, to: &mut Vec<u32>) {
        let (far, near) = self.parts(range);
        to.extend_from_slice(far);
        to.extend_from_slice(near);
    }

    /// The entries from `from` on; copies only if they reach into the inline part.
    pub fn from(&self, from: u32) -> Cow<'_, [u32]> {
        match self.parts(from..self.len()) {
            (far, []) => Cow::Borrowed(far),
            (far, near) => Cow::Owned([far, near].concat()),
        }
    }

    /// Splits a range into its heap and inline slices.
    fn parts(&self, range: Range<u32>) -> (&[u32], &[u32]) {
        let far = self.far.len() as u32;
        let (cut, end) = (range.end.min(far), range.end.min(self.len()));
        let rest = range.start.max(far) - far..end.max(far) - far;
        let near = self.near().get(rest.start as usize..rest.end as usize);
        (self.far.get(range.start as usize..cut as usize).unwrap_or(&[]), near.unwrap_or(&[]))
    }

    fn note_full(&mut self) {
        self.full = (Self::NEAR - self.far.len() % Self::NEAR) as u16;
    }

    fn note_end(&mut self) {
        self.note_full();
        let newest = self.near().last().or(self.far.last());
        self.newest = newest.copied().unwrap_or_default();
    }
}

impl Index<u32> for TailBuffered {
    type Output = u32;
    fn index(&self, at: u32) -> &u32 {
        match at.checked_sub(self.far.len() as u32) {
            Some(at) => &self.near()[at as usize],
            None => &self.far[at as usize],
        }
    }
}

impl PartialEq for TailBuffered {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use crate::shared::tail_buffered::*;

    #[test]
    fn agrees_with_one_list() {
        let mut state = 7u64;
        for _ in 0..200 {
            let mut model: Vec<u32> = (0..5).collect();
            let mut list = TailBuffered::new(model.clone());
            for i in 0..120 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let (at, to) = ((state >> 40) as u32 % 130, (state >> 33) as u32 % 130);
                match state >> 60 {
                    0 => {
                        list.truncate(at);
                        model.truncate(at as usize);
                    }
                    1 => assert_eq!(list.gather(), model),
                    3 => {
                        list.edit(|list| list.insert(0, i));
                        model.insert(0, i);
                    }
                    2 => {
                        let tail = model.get(at as usize..).unwrap_or(&[]);
                        assert_eq!(list.since(at), tail);
                    }
                    _ => {
                        list.push(i);
                        model.push(i);
                    }
                }
                let mut copied = vec![9];
                list.copy(at.min(to)..at.max(to), &mut copied);
                let len = model.len();
                let range = len.min(at.min(to) as usize)..len.min(at.max(to) as usize);
                assert_eq!(copied[1..], model[range]);
                assert!(list.iter().eq(model.iter().copied()));
                assert_eq!(list.get(at), model.get(at as usize).copied());
                assert_eq!([list.far(), list.near()].concat(), model);
                assert_eq!(*list.from(at), *model.get(at as usize..).unwrap_or(&[]));
                assert_eq!(list.len() as usize, len);
                assert_eq!(list.newest(), model.last().copied().unwrap_or_default());
            }
        }
    }
}
