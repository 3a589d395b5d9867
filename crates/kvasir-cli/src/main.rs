//! Command line entry point: parses arguments, merges the options file, runs one of `commands`.
//! No logic of its own.

#![forbid(unsafe_code)]

// First: its macros are used by all others.
#[macro_use]
mod stdio;

mod chat;
mod cli;
mod commands;
mod compat;
mod config;
mod doctor;
mod help;
pub(crate) mod io;
mod options;
mod startup;

use crate::cli::{Cli, Parsed};
use crate::commands::CommandLine;
use clap::CommandFactory;
use std::{ffi::OsString, process::ExitCode};

/// jemalloc returns freed memory to the system on a background thread. glibc's allocator retained
/// up to gigabytes after a burst of hostile requests.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result = Cli::parse_arguments(arguments.clone()).and_then(|parsed| {
        let Parsed { cli, matches } = parsed;
        if cli.print_config {
            print!("{}", config::print(&Cli::command(), &matches));
            return Ok(ExitCode::SUCCESS);
        }
        cli.command.run(CommandLine {
            config: cli.config,
            check: Cli::check_file,
            definition: Cli::command(),
            arguments,
            parse: |arguments| Ok(Cli::parse_arguments(arguments)?.cli.command),
        })
    });
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kvasir: {failure}");
            failure.code()
        }
    }
}
