use crate::ask::{Near, ask_line};

/// Stretches of memory: a chunk's keys and values in blocks of 16 slots.
const PLACES: usize = 8;

/// Memory that is read soon, to be asked for a little at a time while something else is worked on: asked for at once it would be waited for, and
/// tiles read across rows, which processors do not foresee.
#[derive(Clone, Copy)]
pub(crate) struct Soon {
    /// What is left, in lines of 64 bytes: places `first .. end`.
    places: [(*const u8, u32); PLACES],
    first: u8,
    end: u8,
    /// Lines that are asked for at a time.
    step: u32,
    near: Near,
}

impl Soon {
    pub(super) const NOTHING: Self =
        Self { places: [(std::ptr::null(), 0); PLACES], first: 0, end: 0, step: 0, near: Near::First };

    /// Adds bytes from `at` on. What is in more places is left to itself.
    pub(super) fn add(&mut self, at: *const u8, bytes: usize) {
        let lines = bytes.div_ceil(64) as u32;
        if let Some((before, n)) = self.places[..self.end as usize].last_mut()
            && before.wrapping_add(*n as usize * 64) == at
        {
            *n += lines;
        } else if lines > 0 && (self.end as usize) < PLACES {
            self.places[self.end as usize] = (at, lines);
            self.end += 1;
        }
    }

    /// Its second half: who is asked for half a step ahead fills the first level, but not more of it.
    pub(super) fn second_half(&self) -> Self {
        let mut half = Self::NOTHING;
        self.part(self.lines() / 2, u32::MAX, &mut half);
        half
    }

    /// Its first half.
    pub(super) fn first_half(&self) -> Self {
        let mut half = Self::NOTHING;
        self.part(0, self.lines() / 2, &mut half);
        half
    }

    /// Adds lines `from .. to` of this to another.
    fn part(&self, from: u32, to: u32, all: &mut Self) {
        let mut before = 0;
        for &(at, lines) in self.left() {
            let (start, end) = (from.saturating_sub(before).min(lines), (to - before).min(lines));
            all.add(at.wrapping_add(start as usize * 64), end.saturating_sub(start) as usize * 64);
            before += end;
            if before == to {
                break;
            }
        }
    }

    /// The same, for the second-level cache.
    pub(super) fn far(self) -> Self {
        Self { near: Near::Second, ..self }
    }

    fn left(&self) -> &[(*const u8, u32)] {
        &self.places[self.first as usize..self.end as usize]
    }

    fn lines(&self) -> u32 {
        self.left().iter().map(|place| place.1).sum()
    }

    /// The same, to be asked for in so many parts.
    pub(super) fn in_parts(mut self, parts: usize) -> Self {
        self.step = self.lines().div_ceil(parts.max(1) as u32);
        self
    }

    /// Whether there is anything left.
    pub(super) fn is_left(&self) -> bool {
        self.first < self.end
    }

    /// Asks for the next part.
    #[inline(always)]
    pub(super) fn ask(&mut self) {
        let mut wanted = self.step;
        while wanted > 0 && self.first < self.end {
            let (at, lines) = &mut self.places[self.first as usize % PLACES];
            let n = wanted.min(*lines);
            (0..n as usize).for_each(|line| ask_line(self.near, at.wrapping_add(line * 64)));
            (*at, *lines, wanted) = (at.wrapping_add(n as usize * 64), *lines - n, wanted - n);
            self.first += u8::from(*lines == 0);
        }
    }
}

/// Asks for numbers that are read soon.
pub(super) fn ask(numbers: &[f32]) {
    numbers.chunks(16).for_each(|line| ask_line(Near::First, line.as_ptr().cast()));
}
