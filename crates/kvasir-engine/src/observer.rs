//! Hook for recorders and metrics: an `Observer` sees every scheduled and completed step and
//! changes nothing.

use crate::{Core, Nanos};
use kvasir_exec::{Step, StepError};

/// Sees every step, to record or to count. It changes nothing.
pub trait Observer: Send {
    /// A step was made: its decisions are in [`Core::record`], its batch and plan in `step`.
    fn scheduled(&mut self, core: &Core, step: &Step);
    /// A step came back and was taken in: its events are in [`Core::events`], those not yet delivered before it included.
    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos);
    /// Nobody waits or runs any more: who left between two steps is gone too.
    fn idle(&mut self, _core: &Core) {}
}
