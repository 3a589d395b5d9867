//! An incremental prefetch list: address ranges that are prefetched a few lines at a time, beside
//! other work. Issued at once they would exceed the fill buffers and stall; AMX tile loads across
//! rows are not followed by the hardware prefetcher.

use crate::prefetch::hint::{CacheLevel, prefetch_line};

/// Ranges of a list: a chunk's K and V in blocks of 16 slots.
const CAPACITY: usize = 8;

/// Address ranges to prefetch step by step, beside other work.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchRanges {
    /// What is left, in lines of 64 bytes: the ranges `first .. end`.
    ranges: [(*const u8, u32); CAPACITY],
    first: u8,
    end: u8,
    /// Lines prefetched per call.
    step: u32,
    level: CacheLevel,
}

impl Default for PrefetchRanges {
    fn default() -> Self {
        Self { ranges: [(std::ptr::null(), 0); CAPACITY], first: 0, end: 0, step: 0, level: CacheLevel::L1 }
    }
}

impl PrefetchRanges {
    /// Appends a range; contiguous ranges are merged, and those beyond the capacity are left to
    /// demand loads.
    pub(crate) fn add(&mut self, at: *const u8, bytes: usize) {
        let lines = bytes.div_ceil(64) as u32;
        if let Some((before, n)) = self.ranges[..self.end as usize].last_mut()
            && before.wrapping_add(*n as usize * 64) == at
        {
            *n += lines;
        } else if lines > 0 && (self.end as usize) < CAPACITY {
            self.ranges[self.end as usize] = (at, lines);
            self.end += 1;
        }
    }

    /// The second half of the list; the first half is prefetched earlier, and both at once would
    /// exceed L1.
    pub(crate) fn second_half(&self) -> Self {
        let mut half = Self::default();
        self.append_part(self.lines() / 2, u32::MAX, &mut half);
        half
    }

    /// The first half of the list.
    pub(crate) fn first_half(&self) -> Self {
        let mut half = Self::default();
        self.append_part(0, self.lines() / 2, &mut half);
        half
    }

    /// Appends lines `from .. to` of this list to another.
    fn append_part(&self, from: u32, to: u32, all: &mut Self) {
        let mut before = 0;
        for &(at, lines) in self.remaining() {
            let (start, end) = (from.saturating_sub(before).min(lines), (to - before).min(lines));
            all.add(at.wrapping_add(start as usize * 64), end.saturating_sub(start) as usize * 64);
            before += end;
            if before == to {
                break;
            }
        }
    }

    /// The same list, targeting L2.
    pub(crate) fn to_l2(self) -> Self {
        Self { level: CacheLevel::L2, ..self }
    }

    fn remaining(&self) -> &[(*const u8, u32)] {
        &self.ranges[self.first as usize..self.end as usize]
    }

    fn lines(&self) -> u32 {
        self.remaining().iter().map(|range| range.1).sum()
    }

    /// The same list, spread over `parts` calls of [`prefetch`](Self::prefetch).
    pub(crate) fn in_parts(mut self, parts: usize) -> Self {
        self.step = self.lines().div_ceil(parts.max(1) as u32);
        self
    }

    /// Whether anything is left to prefetch.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.first < self.end
    }

    /// Prefetches the next part.
    #[inline(always)]
    pub(crate) fn prefetch(&mut self) {
        let mut left = self.step;
        while left > 0 && self.first < self.end {
            let (at, lines) = &mut self.ranges[self.first as usize % CAPACITY];
            let n = left.min(*lines);
            (0..n as usize).for_each(|line| prefetch_line(self.level, at.wrapping_add(line * 64)));
            (*at, *lines, left) = (at.wrapping_add(n as usize * 64), *lines - n, left - n);
            self.first += u8::from(*lines == 0);
        }
    }
}

/// Prefetches numbers into L1.
pub(crate) fn prefetch(numbers: &[f32]) {
    numbers.chunks(16).for_each(|line| prefetch_line(CacheLevel::L1, line.as_ptr().cast()));
}
