//! The command line: a file per command in `cmd`, and no logic.
#![forbid(unsafe_code)]

mod chat;
mod cmd;
mod options;

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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) if answer.use_stderr() && std::env::args_os().len() > 1 => {
            eprintln!("kvasir: {}", one_line(&answer.to_string()));
            return ExitCode::from(2);
        }
        Err(answer) => answer.exit(),
    };
    match cli.command.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kvasir: {failure}");
            failure.code()
        }
    }
}

/// The first paragraph of a longer complaint: what is wrong, and where.
fn one_line(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
    words.join(" ")
}
