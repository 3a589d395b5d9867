use super::key::Wait;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    stdio::{stderr, stdin},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use std::io::{self, Write};

/// How long the rest of a key may take: longer than any line to a terminal, shorter than a person notices.
const REST_OF_KEY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The terminal in a mode of ours; it gets its own mode back when this is dropped.
pub(in super::super) struct Mode {
    before: Termios,
    pastes: bool,
}

impl Mode {
    /// Every key comes at once, and none is shown.
    pub(super) fn raw() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw)?;
        let mode = Self { before, pastes: true };
        io::stderr().write_all(b"\x1b[?2004h")?;
        Ok(mode)
    }

    /// Keys are not shown and wait for whoever reads next; Ctrl-C still interrupts.
    pub(in super::super) fn silent() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON);
        tcsetattr(stdin(), OptionalActions::Drain, &silent)?;
        Ok(Self { before, pastes: false })
    }
}

impl Drop for Mode {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        if self.pastes {
            let _ = io::stderr().write_all(b"\x1b[?2004l");
        }
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Columns and rows.
pub(in super::super) fn size() -> (usize, usize) {
    match tcgetwinsize(stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// The next byte; none at the end of input.
pub(super) fn byte() -> io::Result<Option<u8>> {
    let mut byte = [0];
    loop {
        match rustix::io::read(stdin(), &mut byte) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The next byte if it comes in time.
pub(super) fn byte_in(time: Wait) -> Option<u8> {
    match time {
        Wait::Soon => byte_soon(),
        Wait::Long => byte().ok().flatten(),
    }
}

fn byte_soon() -> Option<u8> {
    let input = stdin();
    let mut wait = [PollFd::new(&input, PollFlags::IN)];
    match poll(&mut wait, Some(&REST_OF_KEY)) {
        Ok(1..) => byte().ok().flatten(),
        _ => None,
    }
}
