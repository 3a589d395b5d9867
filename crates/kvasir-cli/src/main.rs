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

use crate::cli::{Cli, one_line};
use crate::commands::CommandLine;
use crate::io::failure::Failure;
use clap::{CommandFactory, FromArgMatches, error::ErrorKind};
use std::process::ExitCode;

/// jemalloc returns freed memory to the system on a background thread. glibc's allocator retained
/// up to gigabytes after a burst of hostile requests.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = compat::translate(&Cli::command(), std::env::args_os().collect());
    let args = args.and_then(|args| config::with_file(Cli::command(), args));
    let result = args.and_then(|args| {
        let matches = match help::arranged(Cli::command()).try_get_matches_from(args) {
            Ok(matches) => matches,
            // A command with subcommands prints their list.
            Err(answer) if answer.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                answer.exit()
            }
            Err(answer) if answer.use_stderr() => {
                return Err(Failure::usage(one_line(&answer.to_string())));
            }
            Err(answer) => answer.exit(),
        };
        let cli = Cli::from_arg_matches(&matches).map_err(|e| Failure::usage(one_line(&e.to_string())))?;
        if cli.print_config {
            print!("{}", config::print(&Cli::command(), &matches));
            return Ok(ExitCode::SUCCESS);
        }
        cli.command.run(CommandLine {
            config: cli.config,
            check: Cli::check_file,
            definition: Cli::command(),
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
