//! `TailBuffered`: an append-mostly `u32` list whose newest entries are stored inline and flushed
//! to the heap `Vec` in batches.
//!
//! A decode step appends one entry to thousands of lists. Without the inline tail each append would
//! miss the cache on the end of another heap allocation. The tail is flushed when the length
//! reaches a multiple of `INLINE`, so lists of different lengths flush in different steps. Its test
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
    heap: Vec<u32>,
    inline: [u32; Self::INLINE],
}

impl Default for TailBuffered {
    fn default() -> Self {
        Self { heap: Vec::new(), count: 0, full: Self::INLINE as u16, newest: 0, inline: [0; Self::INLINE] }
    }
}

impl TailBuffered {
    /// Inline capacity: with the three header fields in front, 128 bytes (the `Vec` not counted).
    pub const INLINE: usize = 30;

    /// A list with these entries, all in the heap part.
    pub fn new(list: Vec<u32>) -> Self {
        let mut list = Self { heap: list, ..Self::default() };
        list.note_end();
        list
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> u32 {
        self.heap.len() as u32 + u32::from(self.count)
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
    pub fn heap(&self) -> &[u32] {
        &self.heap
    }

    /// The inline part: everything behind [`TailBuffered::heap`].
    #[inline]
    pub fn inline(&self) -> &[u32] {
        &self.inline[..self.count as usize]
    }

    /// The entry at `at`, if it exists.
    pub fn get(&self, at: u32) -> Option<u32> {
        match at.checked_sub(self.heap.len() as u32) {
            Some(at) => self.inline().get(at as usize).copied(),
            None => self.heap.get(at as usize).copied(),
        }
    }

    /// Length of the common prefix with another list.
    pub fn common_prefix(&self, other: &[u32]) -> usize {
        match common_prefix(&self.heap, other) {
            same if same == self.heap.len() => same + common_prefix(self.inline(), &other[same..]),
            same => same,
        }
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.range(0..self.len())
    }

    /// The entries in `range`, clamped to the list.
    pub fn range(&self, range: Range<u32>) -> impl Iterator<Item = u32> + Clone + '_ {
        let (heap, inline) = self.parts(range);
        heap.iter().chain(inline).copied()
    }

    /// Reserves heap capacity for `more` entries.
    pub fn reserve(&mut self, more: usize) {
        self.heap.reserve(self.count as usize + more);
    }

    /// Whether the next push flushes the inline part. That happens when the length reaches a
    /// multiple of `INLINE`, so lists of different lengths flush in different steps.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.count == self.full
    }

    /// Prefetch by a dummy load of the end of the heap part. Doing so for several lists first
    /// overlaps their cache misses.
    #[inline]
    pub fn prefetch_end(&self) {
        std::hint::black_box(self.heap.last().copied());
    }

    /// Appends one entry; flushes the inline part when due.
    #[inline]
    pub fn push(&mut self, one: u32) {
        if self.is_due() {
            self.gather();
        }
        if let Some(place) = self.inline.get_mut(self.count as usize) {
            *place = one;
            self.count += 1;
        }
        self.newest = one;
    }

    /// Keeps the first `len` entries.
    pub fn truncate(&mut self, len: u32) {
        self.count = (len as usize).saturating_sub(self.heap.len()).min(self.count.into()) as u16;
        self.heap.truncate(len as usize);
        self.note_end();
    }

    /// All entries as one slice; flushes the inline part.
    pub fn gather(&mut self) -> &[u32] {
        self.heap.extend_from_slice(&self.inline[..self.count as usize]);
        self.count = 0;
        self.note_full();
        &self.heap
    }

    /// Flushes, then edits the whole list as a `Vec`.
    pub fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        self.gather();
        let result = edit(&mut self.heap);
        self.note_end();
        result
    }

    /// The entries from `from` on as one slice; flushes only if they span both parts.
    #[inline]
    pub fn since(&mut self, from: u32) -> &[u32] {
        let heap = self.heap.len() as u32;
        if from < heap && self.count > 0 {
            self.gather();
        }
        match from.checked_sub(heap) {
            Some(from) if self.count > 0 => self.inline().get(from as usize..).unwrap_or(&[]),
            _ => self.heap.get(from as usize..).unwrap_or(&[]),
        }
    }

    /// The first `count` entries, as far as they lie in the heap part.
    pub fn first(&self, count: u32) -> &[u32] {
        self.heap.get(..count as usize).unwrap_or(&self.heap)
    }

    /// Appends the entries in `range`, clamped to the list, to `to`.
    pub fn copy(&self, range: Range<u32>, to: &mut Vec<u32>) {
        let (heap, inline) = self.parts(range);
        to.extend_from_slice(heap);
        to.extend_from_slice(inline);
    }

    /// The entries from `from` on; copies only if they reach into the inline part.
    pub fn from(&self, from: u32) -> Cow<'_, [u32]> {
        match self.parts(from..self.len()) {
            (heap, []) => Cow::Borrowed(heap),
            (heap, inline) => Cow::Owned([heap, inline].concat()),
        }
    }

    /// Splits a range into its heap and inline slices.
    fn parts(&self, range: Range<u32>) -> (&[u32], &[u32]) {
        let heap = self.heap.len() as u32;
        let (cut, end) = (range.end.min(heap), range.end.min(self.len()));
        let rest = range.start.max(heap) - heap..end.max(heap) - heap;
        let inline = self.inline().get(rest.start as usize..rest.end as usize);
        (self.heap.get(range.start as usize..cut as usize).unwrap_or(&[]), inline.unwrap_or(&[]))
    }

    fn note_full(&mut self) {
        self.full = (Self::INLINE - self.heap.len() % Self::INLINE) as u16;
    }

    fn note_end(&mut self) {
        self.note_full();
        let newest = self.inline().last().or(self.heap.last());
        self.newest = newest.copied().unwrap_or_default();
    }
}

impl Index<u32> for TailBuffered {
    type Output = u32;
    fn index(&self, at: u32) -> &u32 {
        match at.checked_sub(self.heap.len() as u32) {
            Some(at) => &self.inline()[at as usize],
            None => &self.heap[at as usize],
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
    use kvasir_testkit::{Random, rounds};

    #[test]
    fn agrees_with_one_list() {
        let mut random = Random::new(7);
        for _ in 0..rounds(200) {
            let mut model: Vec<u32> = (0..5).collect();
            let mut list = TailBuffered::new(model.clone());
            for i in 0..120 {
                let state = random.bits();
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
                assert_eq!([list.heap(), list.inline()].concat(), model);
                assert_eq!(*list.from(at), *model.get(at as usize..).unwrap_or(&[]));
                assert_eq!(list.len() as usize, len);
                assert_eq!(list.newest(), model.last().copied().unwrap_or_default());
            }
        }
    }
}
