/// Stretches of memory: a chunk's keys and values in blocks of 16 slots.
const PLACES: usize = 8;

/// Memory that is read soon, to be asked for a little at a time while something else is worked on: asked for at once it would be waited for, and
/// tiles read across rows, which processors do not foresee.
#[derive(Clone, Copy)]
pub(crate) struct Soon {
    /// What is left, in lines of 64 bytes.
    places: [(*const u8, u32); PLACES],
    /// Lines that are asked for at a time.
    step: u32,
    /// Whether they are to come no closer than the second-level cache.
    far: bool,
}

impl Soon {
    pub(super) const NOTHING: Self = Self { places: [(std::ptr::null(), 0); PLACES], step: 0, far: false };

    /// Adds bytes from `at` on. What is in more places is left to itself.
    pub(super) fn add(&mut self, at: *const u8, bytes: usize) {
        if bytes > 0
            && let Some(place) = self.places.iter_mut().find(|place| place.1 == 0)
        {
            *place = (at, bytes.div_ceil(64) as u32);
        }
    }

    /// The second half of this, then the first half of `next`: who is asked for half a step ahead fills the first level, but not more of it.
    pub(super) fn then(self, next: Self) -> Self {
        let mut all = Self::NOTHING;
        let both = self.halves().1.places.into_iter().chain(next.halves().0.places);
        both.for_each(|(at, lines)| all.add(at, lines as usize * 64));
        all
    }

    /// Its first half, and the rest.
    pub(super) fn halves(self) -> (Self, Self) {
        let (mut first, mut second) = (Self::NOTHING, Self::NOTHING);
        let mut left = self.lines() / 2;
        for (at, lines) in self.places {
            let n = left.min(lines);
            first.add(at, n as usize * 64);
            second.add(at.wrapping_add(n as usize * 64), (lines - n) as usize * 64);
            left -= n;
        }
        (first, second)
    }

    /// The same, for the second-level cache.
    pub(super) fn far(self) -> Self {
        Self { far: true, ..self }
    }

    fn lines(&self) -> u32 {
        self.places.iter().map(|place| place.1).sum()
    }

    /// The same, to be asked for in so many parts.
    pub(super) fn in_parts(mut self, parts: usize) -> Self {
        self.step = self.lines().div_ceil(parts.max(1) as u32);
        self
    }

    /// Whether there is anything left.
    pub(super) fn is_left(&self) -> bool {
        self.step > 0
    }

    /// Asks for the next part.
    #[inline(always)]
    pub(super) fn ask(&mut self) {
        let (at, lines) = &mut self.places[0];
        if *lines < self.step {
            return self.ask_across();
        }
        for line in 0..self.step as usize {
            ask_line(at.wrapping_add(line * 64), self.far);
        }
        (*at, *lines) = (at.wrapping_add(self.step as usize * 64), *lines - self.step);
    }

    /// The same from the end of one place to the next.
    #[cold]
    fn ask_across(&mut self) {
        let mut left = self.step;
        while left > 0 {
            let (at, lines) = &mut self.places[0];
            let n = left.min(*lines);
            (0..n as usize).for_each(|line| ask_line(at.wrapping_add(line * 64), self.far));
            (*at, *lines, left) = (at.wrapping_add(n as usize * 64), *lines - n, left - n);
            if *lines == 0 {
                self.places.rotate_left(1);
                if self.places[0].1 == 0 {
                    // Nothing is left.
                    self.step = 0;
                    return;
                }
            }
        }
    }
}

/// Asks for numbers that are read soon.
pub(super) fn ask(numbers: &[f32]) {
    numbers.chunks(16).for_each(|line| ask_line(line.as_ptr().cast(), false));
}

#[inline(always)]
fn ask_line(at: *const u8, far: bool) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: hints, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match far {
            false => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
            true => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, far);
}
