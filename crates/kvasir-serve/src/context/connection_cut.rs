//! Closes the connection of a client that reads its answer too slowly.
//!
//! The socket of such a client takes no bytes, so nothing else would wake the connection's task. A
//! cut connection fails its pending write; its answers are then dropped, which aborts them.

use futures_util::task::AtomicWaker;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    task::Context,
};

/// Connections cut since the process began.
static CUT: AtomicU64 = AtomicU64::new(0);

/// A connection that may be cut from any thread.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCut {
    is_cut: AtomicBool,
    /// The task whose write is pending.
    writer: AtomicWaker,
}

impl ConnectionCut {
    /// Cuts the connection.
    pub(crate) fn cut(&self) {
        if !self.is_cut.swap(true, Ordering::AcqRel) {
            CUT.fetch_add(1, Ordering::Relaxed);
            self.writer.wake();
        }
    }

    /// Whether the connection is cut. If not, `cut` will wake the task of `context`.
    pub(crate) fn poll(&self, context: &Context<'_>) -> bool {
        self.writer.register(context.waker());
        self.is_cut.load(Ordering::Acquire)
    }

    /// Connections cut since the process began.
    pub(crate) fn count() -> u64 {
        CUT.load(Ordering::Relaxed)
    }
}
