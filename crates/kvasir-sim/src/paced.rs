//! [`Paced`]: a roofline-paced device in real time, so that a benchmark against it measures engine,
//! server and client overhead.

use crate::clock::Clock;
use crate::cost::CostDevice;
use crate::output_source::TokenList;
use crate::preset::Preset;
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use std::{
    thread,
    time::{Duration, Instant},
};

/// A [`CostDevice`] that sleeps until each step would be done.
pub struct Paced {
    device: CostDevice,
    clock: Clock,
    started: Instant,
}

impl Paced {
    /// A device as fast as `preset`, whose output consists of `words`.
    pub fn new(preset: Preset, words: TokenList) -> Self {
        let clock = Clock::default();
        Self {
            device: CostDevice::new(preset, clock.clone(), Box::new(words)),
            clock,
            started: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Executor for Paced {
    type Pending = u64;

    fn abilities(&self) -> Abilities {
        self.device.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.device.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<u64, Refused> {
        self.clock.advance(self.now());
        self.device.submit(step)
    }

    fn wait(&mut self, pending: u64) -> (Box<Step>, Result<(), StepError>) {
        // `wait` advances the device's clock to the end of this step.
        let done = self.device.wait(pending);
        let left = self.clock.now().saturating_sub(self.now());
        // A sleep overshoots by about 50 µs; shorter remainders are skipped.
        if left > 50_000 {
            thread::sleep(Duration::from_nanos(left - 50_000));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paced_steps_take_real_time() {
        let preset = Preset::parse("fixed:20ms").unwrap();
        let mut device = Paced::new(preset, TokenList::new(vec![5]));
        let started = Instant::now();
        for _ in 0..3 {
            let pending = device.submit(Box::default()).unwrap();
            device.wait(pending).1.unwrap();
        }
        // Sleeping may take longer, never less.
        assert!(started.elapsed() >= Duration::from_millis(59));
    }
}
