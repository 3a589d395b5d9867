//! Hook for recorders and metrics: an `Observer` sees every scheduled and completed step and
//! changes nothing.

use crate::{Core, Nanos};
use kvasir_exec::{Step, StepError};

/// Sees every step, to record or count. It must not block: it runs on the engine's thread.
pub trait Observer: Send {
    /// A step was scheduled: its decisions are in `Core::record`, its batch and plan in `step`.
    fn scheduled(&mut self, core: &Core, step: &Step);
    /// A step was postprocessed: its events are in `Core::events`, which may still hold undelivered
    /// earlier ones.
    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, now: Nanos);
    /// No request is left; some may have ended between two steps.
    fn idle(&mut self, _core: &Core) {}
}
