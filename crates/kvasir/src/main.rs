//! The command line: a file per command in `cmd`, and no logic.
#![forbid(unsafe_code)]

mod cmd;

use clap::Parser;
use std::process::ExitCode;

/// One LLM inference engine for the desk and for the fleet.
#[derive(Parser)]
#[command(name = "kvasir", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kvasir: {failure}");
            failure.code()
        }
    }
}
