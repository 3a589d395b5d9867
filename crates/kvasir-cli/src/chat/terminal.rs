//! Terminal modes of the chat, and their restoration on every way out.
//!
//! The terminal is in one of three modes:
//!
//! 1. *original*: before the chat and after it.
//! 2. *quiet*: between two prompts. Input is neither echoed nor line-buffered; Ctrl-C raises SIGINT.
//! 3. *raw*: while the line editor reads. Ctrl-C is a byte like any other. `rustyline` sets and leaves it.
//!
//! The chat goes from original to quiet once and alternates between quiet and raw. It never passes
//! through the original mode in between, where a key would be echoed into an answer.
//!
//! Invariant: after [`restore`] the terminal is in its original mode and stays there. `restore`
//! runs when [`Terminal`] is dropped, when the thread that holds it panics, and before the signal
//! listener ends the process. `HELD` is emptied under its lock, and a main thread that finds it empty
//! before the line editor reads stops there. One that is already entering or leaving raw mode has
//! done so when `restore` sets the modes for the second time.
//!
//! This module sets modes without draining the output: `tcdrain` blocks for as long as Ctrl-S stops
//! the terminal. `rustyline` drains it, at a prompt, where nothing waits to be written.
//!
//! Guarded by `tests/terminal.rs`.

use rustix::{
    process::getpgrp,
    stdio::{stderr, stdin},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr},
};
use std::{
    io, panic,
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const BRACKETED_PASTE_OFF: &[u8] = b"\x1b[?2004l";

/// Time in which the line editor enters or leaves raw mode, with a margin.
const ENTERING: Duration = Duration::from_millis(10);

/// What [`restore`] has to undo; none while the terminal is in its original mode.
static HELD: Mutex<Option<Held>> = Mutex::new(None);

/// Whether the terminal has ever been held.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

struct Held {
    original: Termios,
    /// Whether the line editor reads. Bracketed paste is on then.
    is_raw: bool,
}

impl Held {
    fn quiet(&self) -> Termios {
        let mut quiet = self.original.clone();
        quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        quiet
    }
}

fn held() -> MutexGuard<'static, Option<Held>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `held` for a thread that must not block: none if the lock is not free within half a second.
fn held_soon() -> Option<MutexGuard<'static, Option<Held>>> {
    for _ in 0..50 {
        match HELD.try_lock() {
            Ok(held) => return Some(held),
            Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
    None
}

fn set(modes: &Termios) -> io::Result<()> {
    Ok(tcsetattr(stdin(), OptionalActions::Now, modes)?)
}

/// Writes past the lock of `io::stderr`, which another thread may hold.
fn write(bytes: &[u8]) -> io::Result<()> {
    rustix::io::write(stderr(), bytes)?;
    Ok(())
}

/// Puts the terminal back into its original mode, for good. Callable from any thread; later calls
/// do nothing.
pub(crate) fn restore() {
    let Some(held) = held_soon().and_then(|mut held| held.take()) else { return };
    // The terminal of a background job belongs to the shell, and setting its modes would stop the
    // process.
    if tcgetpgrp(stdin()).is_ok_and(|foreground| foreground != getpgrp()) {
        return;
    }
    // A terminal that has been closed needs no modes: errors are of no consequence.
    let _ = set(&held.original);
    if held.is_raw {
        thread::sleep(ENTERING);
        let _ = set(&held.original);
        let _ = write(BRACKETED_PASTE_OFF);
    }
}

/// Holds the terminal in quiet mode; restores it when dropped.
pub(crate) struct Terminal(());

impl Terminal {
    /// Enters quiet mode. A later panic of the calling thread restores the terminal before it
    /// prints its message.
    pub(super) fn hold() -> io::Result<Self> {
        let taken = Held { original: tcgetattr(stdin())?, is_raw: false };
        set(&taken.quiet())?;
        *held() = Some(taken);
        IS_TAKEN.store(true, Ordering::Relaxed);
        let (owner, print) = (thread::current().id(), panic::take_hook());
        panic::set_hook(Box::new(move |info| {
            // A panic of another thread does not end the chat.
            if thread::current().id() == owner {
                restore();
            }
            print(info);
        }));
        Ok(Self(()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Span in which the line editor may be in raw mode, so that [`restore`] has to end its bracketed paste.
pub(crate) struct Raw(());

impl Raw {
    /// Call before the line editor reads. Does not return if the terminal has been restored: the process is
    /// about to end.
    pub(super) fn enter() -> Self {
        if IS_TAKEN.load(Ordering::Relaxed) && !mark_raw(true) {
            loop {
                thread::park();
            }
        }
        Self(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        mark_raw(false);
    }
}

/// False if the terminal is not held.
fn mark_raw(is_raw: bool) -> bool {
    held().as_mut().map(|held| held.is_raw = is_raw).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::{
        fs::File,
        os::unix::ffi::OsStrExt,
        path::Path,
        process::{Command, Stdio},
    };

    #[test]
    #[ignore = "needs a terminal: run by the test below"]
    fn panic_in_raw_mode() {
        if tcgetattr(stdin()).is_err() {
            return;
        }
        std::mem::forget(Terminal::hold().unwrap());
        std::mem::forget(Raw::enter());
        let mut raw = tcgetattr(stdin()).unwrap();
        raw.make_raw();
        set(&raw).unwrap();
        assert!(!tcgetattr(stdin()).unwrap().local_modes.contains(LocalModes::ISIG));
        panic!("in raw mode");
    }

    #[test]
    fn panic_restores_the_terminal_without_unwinding() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let slave = File::options().read(true).write(true).open(path).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "chat::terminal::tests::panic_in_raw_mode", "--ignored", "--nocapture"])
            .stdin(Stdio::from(slave.try_clone().unwrap()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(101), "the test panics");
        let after = tcgetattr(&slave).unwrap();
        assert_eq!(after.local_modes, before.local_modes);
        assert_eq!(after.input_modes, before.input_modes);
        assert_eq!(after.output_modes, before.output_modes);
    }
}
