//! `FrontCommand`: commands from other threads to the front's event loop.

use kvasir_engine::StepEvent;
use tokio::sync::mpsc::UnboundedSender;

/// A command of the operator for one replica, or of a subscriber to live steps.
#[derive(Debug)]
pub(crate) enum FrontCommand {
    Drain(usize),
    Restart(usize),
    /// Subscribes to the steps of a replica: with all requests, or only those of client `key`.
    Subscribe {
        subscriber: u64,
        replica: usize,
        key: Option<u64>,
        events: UnboundedSender<StepEvent>,
    },
    /// A subscriber has consumed `events` events.
    AddCredit {
        subscriber: u64,
        events: u32,
    },
    Unsubscribe(u64),
}
