//! `print!`, `println!` and `eprintln!` that do not panic when the reader closes the pipe (`kvasir
//! replay … | head`).

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    process,
};

/// Writes to stdout. On failure exits with status 1, silently if the pipe is closed.
pub(crate) fn out(words: fmt::Arguments<'_>) {
    if let Err(error) = io::stdout().write_fmt(words) {
        if error.kind() != ErrorKind::BrokenPipe {
            err(format_args!("kvasir: stdout: {error}\n"));
        }
        process::exit(1);
    }
}

/// Writes to stderr, ignoring failures.
pub(crate) fn err(words: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(words);
}

macro_rules! print {
    ($($words:tt)*) => { $crate::stdio::out(format_args!($($words)*)) };
}

macro_rules! println {
    () => { $crate::stdio::out(format_args!("\n")) };
    ($($words:tt)*) => { $crate::stdio::out(format_args!("{}\n", format_args!($($words)*))) };
}

macro_rules! eprintln {
    ($($words:tt)*) => { $crate::stdio::err(format_args!("{}\n", format_args!($($words)*))) };
}
