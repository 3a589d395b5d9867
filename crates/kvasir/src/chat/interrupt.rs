//! Ctrl-C where no key is read: it ends an answer, and where there is none the program.

use std::{
    process::exit,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Whether an answer is there to be ended.
static ANSWERING: AtomicBool = AtomicBool::new(false);
/// What a shell calls a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// An answer that Ctrl-C ends, until it is dropped.
pub(super) struct Answering(Signal);

impl Answering {
    /// None if the system lets nobody listen.
    pub(super) fn begin() -> Option<Self> {
        let signal = signal(SignalKind::interrupt()).ok()?;
        ANSWERING.store(true, Ordering::SeqCst);
        Some(Self(signal))
    }

    /// Comes back when the answer is to end.
    pub(super) async fn is_over(&mut self) {
        self.0.recv().await;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        ANSWERING.store(false, Ordering::SeqCst);
    }
}

/// Ends the program by Ctrl-C while there is no answer. Once somebody has listened for the signal the system itself does nothing any more: a
/// model that is loaded could not be interrupted.
pub(super) fn watch() {
    // Without the thread it is as it would be without this function.
    let _ = thread::Builder::new().name("interrupt".into()).spawn(|| {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            let Ok(mut pressed) = signal(SignalKind::interrupt()) else { return };
            while pressed.recv().await.is_some() {
                if !ANSWERING.load(Ordering::SeqCst) {
                    exit(INTERRUPTED);
                }
            }
        });
    });
}
