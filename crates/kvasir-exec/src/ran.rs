//! [`Ran`]: the pending handle of a synchronous executor, which runs each step inside `submit`.

use crate::executor::{Step, StepError};

/// A step that has already run when `submit` returns; `wait` only unpacks it.
///
/// For backends that run on the calling CPU.
pub struct Ran {
    step: Box<Step>,
    result: Result<(), StepError>,
}

impl Ran {
    /// Runs `run` on the step now, and stores its result.
    pub fn now(mut step: Box<Step>, run: impl FnOnce(&mut Step) -> Result<(), StepError>) -> Self {
        let result = run(&mut step);
        Self { step, result }
    }

    /// The step and its result.
    pub fn into_parts(self) -> (Box<Step>, Result<(), StepError>) {
        (self.step, self.result)
    }
}
