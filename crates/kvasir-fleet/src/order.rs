//! `Order`: commands from other threads to the front's event loop.

use kvasir_engine::StepEvent;
use tokio::sync::mpsc::UnboundedSender;

/// A command of the operator for one replica, or of a reader of live steps.
#[derive(Debug)]
pub(crate) enum Order {
    Drain(usize),
    Restart(usize),
    /// Send the steps of a replica, of all requests or of those with a client key.
    Watch {
        watcher: u64,
        replica: usize,
        key: Option<u64>,
        events: UnboundedSender<StepEvent>,
    },
    /// A reader has taken events.
    WatchMore {
        watcher: u64,
        events: u32,
    },
    Unwatch(u64),
}
