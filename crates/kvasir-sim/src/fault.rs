use kvasir_exec::StepError;
use kvasir_sample::{STRIDE, mix};

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

/// Numbers from a seed, one after the other.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STRIDE);
        mix(self.0)
    }

    /// True in `thousandths` of the throws.
    fn throw(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.next() % 1000 < u64::from(thousandths)
    }
}

/// What becomes of a step that was taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It never comes back.
    Lost(StepError),
    /// It fails, before or after it has written what it had to.
    Failed { error: StepError, wrote: bool },
    /// It comes back late.
    Late,
    /// It comes back in time.
    InTime,
}

/// Throws the faults of one device, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Injector {
    faults: Faults,
    dice: Dice,
    /// What becomes of the next step, where that was said.
    planned: Option<Fate>,
}

impl Default for Injector {
    fn default() -> Self {
        Self::new(Faults::default())
    }
}

impl Injector {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, dice: Dice::new(faults.seed), planned: None }
    }

    /// Whether a step is taken.
    pub(crate) fn submit(&mut self) -> Result<(), StepError> {
        if self.dice.throw(self.faults.refused) {
            return Err(StepError::Failed("injected: refused".into()));
        }
        match self.dice.throw(self.faults.out_of_memory) {
            true => Err(StepError::OutOfMemory("injected: out of memory".into())),
            false => Ok(()),
        }
    }

    /// Says what becomes of the next step that was taken.
    pub(crate) fn plan(&mut self, fate: Fate) {
        self.planned = Some(fate);
    }

    /// What becomes of a step that was taken.
    pub(crate) fn complete(&mut self) -> Fate {
        if let Some(fate) = self.planned.take() {
            return fate;
        }
        if self.dice.throw(self.faults.lost) {
            return Fate::Lost(StepError::Lost("injected: lost".into()));
        }
        if self.dice.throw(self.faults.failed) {
            let error = StepError::Failed("injected: failed".into());
            return Fate::Failed { error, wrote: self.dice.throw(500) };
        }
        match self.dice.throw(self.faults.late) {
            true => Fate::Late,
            false => Fate::InTime,
        }
    }
}
