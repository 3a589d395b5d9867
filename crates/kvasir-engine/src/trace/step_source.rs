//! `StepSource`: a stream of the live steps of one engine, in this process or in a worker.

use crate::trace::step_trace::StepTrace;
use serde::{Deserialize, Serialize};
use std::task::{Context, Poll};

/// An event of a live stream of steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum StepEvent {
    /// A new snapshot follows: the next step describes all live requests.
    Begin,
    /// A step.
    Step(Box<StepTrace>),
}

/// A live stream of steps. Dropping it ends the stream.
pub trait StepSource: Send {
    /// Polls for the next event; `None` after the engine has stopped. A slow reader loses steps,
    /// and then receives `Begin` before the next step.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StepEvent>>;
}
