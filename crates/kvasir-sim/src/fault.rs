/// Seeded faults of a simulated device, each in thousandths of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Where the sequence of faults starts.
    pub seed: u64,
    /// Steps that are not taken.
    pub refused: u32,
    /// Steps that fail while they run, with or without having written what they had to.
    pub failed: u32,
    /// Steps that run out of memory.
    pub out_of_memory: u32,
    /// Steps that come back late.
    pub late: u32,
    /// Completions that never come: the device is gone.
    pub lost: u32,
}

/// A small generator with a good spread (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// True in `thousandths` of the throws.
    pub(crate) fn throw(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.next() % 1000 < u64::from(thousandths)
    }
}
