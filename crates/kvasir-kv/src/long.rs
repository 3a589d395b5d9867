//! `LongList`: an append-mostly `u32` list whose newest entries are stored inline and flushed to
//! the heap `Vec` in batches.
//!
//! A decode step appends one entry to thousands of lists. Without the inline tail each append would
//! miss the cache on the end of another heap allocation. The tail is flushed when the length
//! reaches a multiple of `NEAR`, so lists of different lengths flush in different steps. Its test
//! compares it with a `Vec`.

use crate::blocks::common_prefix;
use std::borrow::Cow;
use std::ops::{Index, Range};

/// A long list of tokens, blocks or slots that grows by one in every step. The newest few lie in place and go to the long part
/// together: the ends of thousands of lists lie in thousands of pages of memory, which a step would wait for one by one.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct LongList {
    /// How many are near.
    count: u16,
    /// At how many near ones the next one brings all into one piece.
    full: u16,
    newest: u32,
    /// All but the near ones.
    far: Vec<u32>,
    near: [u32; Self::NEAR],
}

impl Default for LongList {
    fn default() -> Self {
        Self { far: Vec::new(), count: 0, full: Self::NEAR as u16, newest: 0, near: [0; Self::NEAR] }
    }
}

impl LongList {
    /// Most that lie in place: as many as fill a cache line together with their count and the newest.
    pub const NEAR: usize = 30;

    /// A list of these.
    pub fn new(list: Vec<u32>) -> Self {
        let mut list = Self { far: list, ..Self::default() };
        list.note_end();
        list
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> u32 {
        self.far.len() as u32 + u32::from(self.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last one, without a look into the long part; 0 if there is none.
    #[inline]
    pub fn newest(&self) -> u32 {
        self.newest
    }

    /// The long part.
    #[inline]
    pub fn far(&self) -> &[u32] {
        &self.far
    }

    /// What lies in place: everything behind [`LongList::far`].
    #[inline]
    pub fn near(&self) -> &[u32] {
        &self.near[..self.count as usize]
    }

    /// The one at `at`, if there is one.
    pub fn get(&self, at: u32) -> Option<u32> {
        match at.checked_sub(self.far.len() as u32) {
            Some(at) => self.near().get(at as usize).copied(),
            None => self.far.get(at as usize).copied(),
        }
    }

    /// How many leading ones are those of another list.
    pub fn common_prefix(&self, other: &[u32]) -> usize {
        match common_prefix(&self.far, other) {
            same if same == self.far.len() => same + common_prefix(self.near(), &other[same..]),
            same => same,
        }
    }

    /// All of them, wherever they lie.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.range(0..self.len())
    }

    /// Those in `range`, as far as they are there, wherever they lie.
    pub fn range(&self, range: Range<u32>) -> impl Iterator<Item = u32> + Clone + '_ {
        let (far, near) = self.parts(range);
        far.iter().chain(near).copied()
    }

    /// Takes memory for `more`.
    pub fn reserve(&mut self, more: usize) {
        self.far.reserve(self.count as usize + more);
    }

    /// Whether the next one to be added brings all into one piece: at certain lengths, so that lists which began together are
    /// not all brought together in the same step.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.count == self.full
    }

    /// Looks at the memory where the long part grows. Who does so for several lists one after the other waits for it once.
    #[inline]
    pub fn touch_end(&self) {
        std::hint::black_box(self.far.last().copied());
    }

    /// Adds one.
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

    /// Drops what is behind the first `len`.
    pub fn truncate(&mut self, len: u32) {
        self.count = (len as usize).saturating_sub(self.far.len()).min(self.count.into()) as u16;
        self.far.truncate(len as usize);
        self.note_end();
    }

    /// All of them, brought into one piece.
    pub fn gather(&mut self) -> &[u32] {
        self.far.extend_from_slice(&self.near[..self.count as usize]);
        self.count = 0;
        self.note_full();
        &self.far
    }

    /// Changes anything, in one piece.
    pub fn edit<T>(&mut self, edit: impl FnOnce(&mut Vec<u32>) -> T) -> T {
        self.gather();
        let result = edit(&mut self.far);
        self.note_end();
        result
    }

    /// Those from `from` on, brought into one piece if they are not.
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

    /// The first ones, as far as they are not near.
    pub fn first(&self, count: u32) -> &[u32] {
        self.far.get(..count as usize).unwrap_or(&self.far)
    }

    /// Appends those in `range` to `to`, as far as they are there.
    pub fn copy(&self, range: Range<u32>, to: &mut Vec<u32>) {
        let (far, near) = self.parts(range);
        to.extend_from_slice(far);
        to.extend_from_slice(near);
    }

    /// Those from `from` on, wherever they lie.
    pub fn from(&self, from: u32) -> Cow<'_, [u32]> {
        match self.parts(from..self.len()) {
            (far, []) => Cow::Borrowed(far),
            (far, near) => Cow::Owned([far, near].concat()),
        }
    }

    /// What of a range is far, and what is near.
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

impl Index<u32> for LongList {
    type Output = u32;
    fn index(&self, at: u32) -> &u32 {
        match at.checked_sub(self.far.len() as u32) {
            Some(at) => &self.near()[at as usize],
            None => &self.far[at as usize],
        }
    }
}

impl PartialEq for LongList {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_one_list() {
        let mut state = 7u64;
        for _ in 0..200 {
            let mut model: Vec<u32> = (0..5).collect();
            let mut list = LongList::new(model.clone());
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
