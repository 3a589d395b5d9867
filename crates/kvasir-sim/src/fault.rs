//! Fault injection: refused, failed, out-of-memory, late and lost steps, drawn from a seed.
//!
//! The sequence of faults is a function of the seed and of the order of calls, so every failure can
//! be replayed.

use kvasir_exec::StepError;
use kvasir_sample::{STRIDE, mix};

/// Fault rates of a simulated device, each in thousandths of all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Seed of the fault sequence.
    pub seed: u64,
    /// Steps that `submit` refuses.
    pub refused: u32,
    /// Steps that fail while running; half of them after writing their K and V, half without
    /// writing.
    pub failed: u32,
    /// Steps that `submit` refuses for lack of memory.
    pub out_of_memory: u32,
    /// Steps that complete late.
    pub late: u32,
    /// Steps whose completion reports that the device is lost.
    pub lost: u32,
}

/// A seeded random number generator (splitmix64).
#[derive(Clone, Debug)]
struct FaultRandom(u64);

impl FaultRandom {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STRIDE);
        mix(self.0)
    }

    /// True with a probability of `thousandths` / 1000.
    fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.next() % 1000 < u64::from(thousandths)
    }
}

/// The outcome of a submitted step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// The device is lost.
    Lost(StepError),
    /// It fails, with or without having written its K and V.
    Failed { error: StepError, wrote: bool },
    /// It completes late.
    Late,
    /// It completes in time.
    InTime,
}

/// Draws the faults of one device; deterministic in the seed.
#[derive(Debug)]
pub(crate) struct Injector {
    faults: Faults,
    rng: FaultRandom,
    /// The outcome of the next completed step, if a test has set it.
    planned: Option<StepOutcome>,
}

impl Default for Injector {
    fn default() -> Self {
        Self::new(Faults::default())
    }
}

impl Injector {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, rng: FaultRandom::new(faults.seed), planned: None }
    }

    /// Draws whether a step is accepted.
    pub(crate) fn submit(&mut self) -> Result<(), StepError> {
        if self.rng.happens(self.faults.refused) {
            return Err(StepError::Failed("injected: refused".into()));
        }
        if self.rng.happens(self.faults.out_of_memory) {
            Err(StepError::OutOfMemory("injected: out of memory".into()))
        } else {
            Ok(())
        }
    }

    /// Sets the outcome of the next completed step.
    pub(crate) fn plan(&mut self, fate: StepOutcome) {
        self.planned = Some(fate);
    }

    /// Draws the outcome of a submitted step.
    pub(crate) fn complete(&mut self) -> StepOutcome {
        if let Some(fate) = self.planned.take() {
            return fate;
        }
        if self.rng.happens(self.faults.lost) {
            return StepOutcome::Lost(StepError::Lost("injected: lost".into()));
        }
        if self.rng.happens(self.faults.failed) {
            let error = StepError::Failed("injected: failed".into());
            return StepOutcome::Failed { error, wrote: self.rng.happens(500) };
        }
        if self.rng.happens(self.faults.late) { StepOutcome::Late } else { StepOutcome::InTime }
    }
}
