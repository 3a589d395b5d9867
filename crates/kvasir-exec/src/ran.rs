use crate::{Step, StepError};

/// A step that ran when it was submitted: what is pending where the processor is the device, and nothing is left to
/// wait for.
pub struct Ran {
    step: Box<Step>,
    result: Result<(), StepError>,
}

impl Ran {
    /// Runs a step.
    pub fn now(mut step: Box<Step>, run: impl FnOnce(&mut Step) -> Result<(), StepError>) -> Self {
        let result = run(&mut step);
        Self { step, result }
    }

    /// The step and what became of it.
    pub fn into_parts(self) -> (Box<Step>, Result<(), StepError>) {
        (self.step, self.result)
    }
}
