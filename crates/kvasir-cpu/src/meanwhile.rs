//! What a thread attends to in the next layer, asked for beside products of matrices. With many streams these wait for operations and leave memory idle, and
//! attention the other way round: what it reads then comes from the caches. It is asked for as late as there is time for all of it: weights and other guests'
//! work push it out of the caches again. No result depends on it.

use crate::Level;
use crate::ask::{Near, ask_line};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;

/// Lines of a page.
const LINES: usize = 64;
/// Bytes of a line of memory, and of a page.
const LINE: usize = 64;
const PAGE: usize = LINES * LINE;
/// Pages that all threads note at most, 16 MB: what is asked for must still be in the third level when it is read.
const MOST: usize = 4096;
/// How many pages earlier than the last moment a thread begins: it may find less to do than in the step before.
const EARLY: usize = 128;
/// Tokens of steps whose matrices wait for operations and whose attention waits for memory.
const TOKENS: RangeInclusive<usize> = 5..=64;

/// Whether steps of so many tokens, or so many rows of one, gain by it where a level does.
pub(crate) fn fits(tokens: usize) -> bool {
    TOKENS.contains(&tokens)
}

/// Whether a level does. Tile units multiply faster than memory brings weights; others were not measured.
pub(crate) const fn gains(level: Level) -> bool {
    matches!(level, Level::Avx512Bf16)
}

/// Whether such steps gain at this level.
pub(crate) fn pays(level: Level, tokens: usize) -> bool {
    gains(level) && fits(tokens)
}

/// How many pages each of so many threads may note in a step of so many tokens.
pub(crate) fn most(level: Level, tokens: usize, threads: usize) -> usize {
    if pays(level, tokens) { MOST / threads } else { 0 }
}

/// What a thread has noted and not yet taken.
struct Pages {
    /// The layer that they were noted in.
    layer: usize,
    left: VecDeque<Page>,
    /// How often one has been wanted since.
    wanted: usize,
    /// The same of each layer, all of it, the last time.
    before: Vec<usize>,
}

impl Pages {
    const NONE: Self = Self { layer: usize::MAX, left: VecDeque::new(), wanted: 0, before: Vec::new() };

    /// Begins anew behind another layer.
    fn begin(&mut self, layer: usize) {
        if self.layer != usize::MAX {
            let layers = self.before.len().max(self.layer + 1);
            self.before.resize(layers, 0);
            self.before[self.layer] = self.wanted;
        }
        self.left.clear();
        (self.layer, self.wanted) = (layer, 0);
    }

    /// Whether as many will still be wanted after this one as are left, and some.
    fn can_wait(&self) -> bool {
        let all = self.before.get(self.layer).copied().unwrap_or(0);
        self.wanted + self.left.len() + EARLY < all
    }
}

thread_local! {
    static PAGES: RefCell<Pages> = const { RefCell::new(Pages::NONE) };
}

/// Notes what is read in the next layer, at most so many pages, in the order in which `layer` reads its own: `note` is handed what takes where bytes lie and how
/// many.
pub(crate) fn note(layer: usize, most: usize, note: impl FnOnce(&mut dyn FnMut(*const u8, usize))) {
    PAGES.with_borrow_mut(|pages| {
        if pages.layer != layer {
            pages.begin(layer);
        }
        let mut room = most.saturating_sub(pages.left.len());
        // Once: a step takes no memory from the heap.
        pages.left.reserve(room);
        note(&mut |at, bytes| {
            // A last half is asked for as a whole one; less is left to who reads it.
            let count = ((bytes + PAGE / 2) / PAGE).min(room);
            pages.left.extend((0..count).map(|n| Page(at.wrapping_add(n * PAGE))));
            room -= count;
        });
    });
}

/// The next page of those that were noted, if it is time for it.
pub(crate) fn next() -> Option<Page> {
    PAGES.with_borrow_mut(|pages| {
        pages.wanted += 1;
        if pages.can_wait() { None } else { pages.left.pop_front() }
    })
}

/// A page to be asked for a few lines at a time: a core waits for some 50 lines at once, and forgets what it is asked for beyond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Page(*const u8);

impl Page {
    /// In place of one: memory that is in the first level costs nothing to ask for, and nothing branches.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(near: *const u8) -> Self {
        Self(near)
    }

    /// Asks for part `part` of `of`, which divides its 64 lines.
    #[inline(always)]
    pub(crate) fn ask(self, part: usize, of: usize) {
        let lines = LINES / of;
        let first = part * lines;
        (first..first + lines).for_each(|line| ask_line(Near::Second, self.0.wrapping_add(line * LINE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_in_order_until_another_layer_is_noted() {
        let at = |n: usize| std::ptr::without_provenance::<u8>(n);
        note(3, 9, |note| note(at(0x10_0000), 2 * PAGE + PAGE / 2));
        note(3, 9, |note| {
            note(at(0x20_0000), PAGE / 2 - 1);
            note(at(0x30_0000), PAGE);
        });
        let some = || next().map(|page| page.0 as usize);
        assert_eq!([some(), some()], [Some(0x10_0000), Some(0x10_0000 + PAGE)]);
        assert_eq!([some(), some(), some()], [Some(0x10_0000 + 2 * PAGE), Some(0x30_0000), None]);
        note(4, 9, |note| note(at(0x40_0000), usize::MAX / 2));
        assert_eq!(std::iter::from_fn(next).count(), 9);
        note(5, 9, |note| note(at(0x50_0000), PAGE));
        assert_eq!([next(), next()], [Some(Page(at(0x50_0000))), None]);
    }

    #[test]
    fn pages_wait_while_there_is_time_for_all_of_them_later() {
        const WANTED: usize = 2 * EARLY;
        let note_two = |layer| note(layer, 9, |note| note(std::ptr::without_provenance(0x10_0000), 2 * PAGE));
        let came = || (0..WANTED).map(|_| next().is_some()).collect::<Vec<_>>();
        let at_once = |n: usize| n < 2;
        let late = |n: usize| (WANTED - EARLY - 3..WANTED - EARLY - 1).contains(&n);
        for layer in [0, 1] {
            note_two(layer);
            assert_eq!(
                came(),
                (0..WANTED).map(at_once).collect::<Vec<_>>(),
                "how many will be wanted is not known"
            );
        }
        for layer in [0, 1, 0] {
            note_two(layer);
            assert_eq!(came(), (0..WANTED).map(late).collect::<Vec<_>>());
        }
    }
}
