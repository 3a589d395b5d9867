//! Offloads CPU-bound work of HTTP handlers, so that other tasks of the async runtime keep running.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

/// Body size, in bytes, from which parsing counts as blocking work.
pub(crate) const BLOCKING_BYTES: usize = 64 << 10;

/// Runs blocking work via `block_in_place`: the runtime moves other clients' tasks to another
/// thread.
pub(crate) fn run_blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        // On a single-threaded runtime, or outside any, there is no thread to move tasks to.
        _ => work(),
    }
}
