//! CPython's Mersenne Twister (MT19937), to reproduce workloads drawn with Python's `random` module
//! token for token.

const N: usize = 624;
const M: usize = 397;

/// Equivalent of `random.seed(n)` followed by `random.randint`.
pub(crate) struct Twister {
    state: [u32; N],
    at: usize,
}

impl Twister {
    /// Equivalent of `random.seed(seed)` for a seed of at most 32 bits.
    pub(crate) fn new(seed: u32) -> Self {
        let mut twister = Self { state: [0; N], at: N };
        twister.fill(19_650_218);
        twister.mix_in(seed);
        twister
    }

    fn fill(&mut self, seed: u32) {
        let mut last = seed;
        for (i, word) in (0u32..).zip(&mut self.state) {
            if i > 0 {
                last = 1_812_433_253u32.wrapping_mul(last ^ last >> 30).wrapping_add(i);
            }
            *word = last;
        }
    }

    /// MT19937 `init_by_array` with the seed as the only element.
    fn mix_in(&mut self, seed: u32) {
        let s = &mut self.state;
        let mut i = 1;
        for _ in 0..N {
            let before = s[i - 1] ^ s[i - 1] >> 30;
            s[i] = (s[i] ^ before.wrapping_mul(1_664_525)).wrapping_add(seed);
            i = Self::next_place(s, i);
        }
        for _ in 0..N - 1 {
            let before = s[i - 1] ^ s[i - 1] >> 30;
            s[i] = (s[i] ^ before.wrapping_mul(1_566_083_941)).wrapping_sub(i as u32);
            i = Self::next_place(s, i);
        }
        s[0] = 1 << 31;
    }

    fn next_place(s: &mut [u32; N], i: usize) -> usize {
        if i + 1 < N {
            return i + 1;
        }
        s[0] = s[N - 1];
        1
    }

    fn word(&mut self) -> u32 {
        if self.at >= N {
            for i in 0..N {
                let y = self.state[i] & 1 << 31 | self.state[(i + 1) % N] & !(1 << 31);
                let odd = if y & 1 == 1 { 0x9908_B0DF } else { 0 };
                self.state[i] = self.state[(i + M) % N] ^ y >> 1 ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9D2C_5680;
        y ^= y << 15 & 0xEFC6_0000;
        y ^ y >> 18
    }

    /// Equivalent of `random.randint(low, high)`, inclusive on both sides.
    pub(crate) fn randint(&mut self, low: u32, high: u32) -> u32 {
        let choices = high - low + 1;
        let bits = u32::BITS - choices.leading_zeros();
        loop {
            let drawn = self.word() >> (u32::BITS - bits);
            if drawn < choices {
                return low + drawn;
            }
        }
    }
}
