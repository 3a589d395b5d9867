//! Thread of a ZMQ publisher: opens its sockets, and opens them again after a failure, or when
//! subscribers do not read.

use std::{thread, time::Duration};
use zeromq::ZmqError;

/// Pause before sockets are opened again after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Reason for closing all sockets.
pub(crate) enum CloseReason {
    /// The handle was dropped.
    Ended,
    /// Subscribers do not read.
    Unread,
}

/// A publisher, on its thread.
pub(crate) trait Publishing {
    /// What it publishes, in warnings.
    const NAME: &'static str;
    /// Opens the sockets, and publishes until they must be closed.
    async fn serve(&mut self) -> Result<CloseReason, ZmqError>;
    /// Whether the handle was dropped.
    fn has_ended(&mut self) -> bool;
    /// Reports a warning.
    fn warn(&self, warning: &str);
}

/// Publishes until the handle is dropped.
pub(crate) fn run<P: Publishing>(mut publishing: P) {
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let closed = runtime.map_err(ZmqError::from).and_then(|runtime| {
            // The end of the runtime drops the tasks that wait for subscribers, with their queues.
            runtime.block_on(publishing.serve())
        });
        match closed {
            Ok(CloseReason::Ended) => return,
            Ok(CloseReason::Unread) => {
                let name = P::NAME;
                publishing.warn(&format!("{name}: a subscriber does not read; all of them are disconnected"));
            }
            Err(error) => {
                publishing.warn(&format!("{}: {error}", P::NAME));
                thread::sleep(RETRY_AFTER);
                if publishing.has_ended() {
                    return;
                }
            }
        }
    }
}
