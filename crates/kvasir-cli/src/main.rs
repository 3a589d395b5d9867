//! Command line entry point: parses arguments, merges the options file, runs a subcommand of `cmd`.
//! No logic of its own.
#![forbid(unsafe_code)]

#[macro_use]
mod said;

mod chat;
mod cmd;
mod config;
mod doctor;
mod facts;
mod help;
mod options;
mod switch;

use clap::{CommandFactory, FromArgMatches, Parser, error::ErrorKind};
use std::{path::PathBuf, process::ExitCode};

/// jemalloc returns freed memory to the system on a background thread. glibc's allocator retained
/// up to gigabytes after a burst of hostile requests.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// One LLM inference engine for the desk and for the fleet.
#[derive(Parser)]
#[command(name = "kvasir", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: cmd::Command,
    /// A TOML file of options by their names; the command line and the environment go before it
    #[arg(long, global = true, env = "KVASIR_CONFIG", value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Print the options as such a file instead of running
    #[arg(long, global = true)]
    print_config: bool,
    /// Use no better instructions than these: portable, avx2, avx-vnni, avx512-vnni, avx512-bf16 or amx, on Arm neon or neon-dotprod [default: the machine's best]
    #[arg(long, global = true, env = "KVASIR_INSTRUCTIONS", value_name = "LEVEL")]
    instructions: Option<kvasir_cpu::Level>,
}

fn main() -> ExitCode {
    let asked = config::with_file(Cli::command(), std::env::args_os().collect());
    let ran = asked.and_then(|args| {
        let matches = match help::arranged(Cli::command()).try_get_matches_from(args) {
            Ok(matches) => matches,
            // A command with subcommands prints their list.
            Err(answer) if answer.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                answer.exit()
            }
            Err(answer) if answer.use_stderr() => {
                return Err(cmd::Failure::usage(one_line(&answer.to_string())));
            }
            Err(answer) => answer.exit(),
        };
        let cli =
            Cli::from_arg_matches(&matches).map_err(|e| cmd::Failure::usage(one_line(&e.to_string())))?;
        if cli.print_config {
            print!("{}", config::print(&Cli::command(), &matches));
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(level) = cli.instructions {
            level.limit();
        }
        cli.command.run(cli.config)
    });
    match ran {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kvasir: {failure}");
            failure.code()
        }
    }
}

/// Reduces a clap error to one line: its first paragraph, plus a suggestion of a similar spelling.
fn one_line(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
    let tips = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let similar = tips.filter(|tip| tip.contains("similar")).map(|tip| format!("; {tip}"));
    words.join(" ") + &similar.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_mistypes_is_told_what_there_is() {
        let said =
            |args: &[&str]| one_line(&Cli::command().try_get_matches_from(args).unwrap_err().to_string());
        assert_eq!(
            said(&["kvasir", "servee"]),
            "unrecognized subcommand 'servee'; a similar subcommand exists: 'serve'"
        );
        assert_eq!(
            said(&["kvasir", "serve", "--prot", "1"]),
            "unexpected argument '--prot' found; a similar argument exists: '--port'"
        );
        assert_eq!(said(&["kvasir", "serve", "--port", "x"]).lines().count(), 1);
    }
}
