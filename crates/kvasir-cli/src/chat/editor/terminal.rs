//! Terminal input bytes with timeouts, and the window size.

use crate::chat::editor::key::Wait;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    stdio::{stderr, stdin},
    termios::tcgetwinsize,
};
use std::io;

/// Timeout between the bytes of one key: above any line latency, below perception.
const REST_OF_KEY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Columns and rows of the terminal; 80×24 if unknown.
pub(crate) fn size() -> (usize, usize) {
    match tcgetwinsize(stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Reads the next byte, blocking; `None` at end of input.
pub(crate) fn byte() -> io::Result<Option<u8>> {
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

/// Reads the next byte within `time`.
pub(crate) fn byte_in(time: Wait) -> Option<u8> {
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
