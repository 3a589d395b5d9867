//! Words on stdout and stderr. Whoever reads them may leave (`kvasir replay … | head`), which is no defect of ours: the standard
//! macros of these names panic then.

use std::{
    fmt,
    io::{self, ErrorKind, Write},
    process,
};

/// Says it on stdout, or ends the program: without a word if the reader has left.
pub(crate) fn out(words: fmt::Arguments<'_>) {
    if let Err(error) = io::stdout().write_fmt(words) {
        if error.kind() != ErrorKind::BrokenPipe {
            err(format_args!("kvasir: stdout: {error}\n"));
        }
        process::exit(1);
    }
}

/// Says it on stderr, if anybody is there.
pub(crate) fn err(words: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(words);
}

macro_rules! print {
    ($($words:tt)*) => { $crate::said::out(format_args!($($words)*)) };
}

macro_rules! println {
    () => { $crate::said::out(format_args!("\n")) };
    ($($words:tt)*) => { $crate::said::out(format_args!("{}\n", format_args!($($words)*))) };
}

macro_rules! eprintln {
    ($($words:tt)*) => { $crate::said::err(format_args!("{}\n", format_args!($($words)*))) };
}
