//! Cooperative interruption: SIGINT and SIGTERM set a flag, so that a command can remove unfinished
//! files.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use tokio::{runtime, signal};

/// Flag set by SIGINT or SIGTERM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Installs the handlers on a thread. If that fails, signals keep their default action.
    pub(crate) fn watch() -> Self {
        let watch = Self::default();
        let raised = watch.clone();
        thread::spawn(move || {
            let Ok(runtime) = runtime::Builder::new_current_thread().enable_all().build() else { return };
            if runtime.block_on(asked_to_end()) {
                raised.0.store(true, Ordering::Relaxed);
            }
        });
        watch
    }

    /// Whether a signal has arrived.
    pub(crate) fn has_come(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Wraps a writer that fails once a signal has arrived.
    pub(crate) fn stopping<W: Write>(&self, to: W) -> impl Write {
        Stopping { to, interruption: self.clone() }
    }
}

struct Stopping<W> {
    to: W,
    interruption: Interruption,
}

impl<W: Write> Write for Stopping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.interruption.has_come() { Err(io::Error::other("interrupted")) } else { self.to.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

async fn asked_to_end() -> bool {
    let Ok(mut terminate) = signal::unix::signal(signal::unix::SignalKind::terminate()) else { return false };
    tokio::select! {
        interrupted = signal::ctrl_c() => interrupted.is_ok(),
        _ = terminate.recv() => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_answer_writes_nothing_more() {
        let (mut bytes, interruption) = (Vec::new(), Interruption::default());
        let mut to = interruption.stopping(&mut bytes);
        to.write_all(b"abc").unwrap();
        interruption.0.store(true, Ordering::Relaxed);
        assert_eq!(to.write_all(b"d").unwrap_err().to_string(), "interrupted");
        drop(to);
        assert_eq!(bytes, b"abc");
    }
}
