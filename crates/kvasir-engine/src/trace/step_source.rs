//! `StepSource`: a stream of one engine's live steps, from this process or from another one.

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
    /// Polls for the next event; `None` after the engine has stopped. A reader that falls behind
    /// loses steps, and receives `Begin` before the next.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<StepEvent>>;
}
