//! The command line as a whole: its commands and the options that all of them take.

use crate::commands::Command;
use crate::compat::translate;
use crate::config::with_file;
use crate::help;
use crate::io::failure::Failure;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, error::ErrorKind};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Shown below the list of commands.
const FIRST_STEPS: &str = "First steps:
  kvasir run 'What is 7 + 8?'     ask the built-in model
  kvasir run llama3.2:1b 'Hi'     fetch a model from the hub, and ask it
  kvasir chat model.gguf          chat with a model in the terminal
  kvasir serve model.gguf         serve it, with a page at http://127.0.0.1:8000

Options and commands of llama.cpp, Ollama and vLLM are translated, or an error says what to type.";

/// One LLM inference engine for the desk and for the fleet.
#[derive(Parser)]
#[command(name = "kvasir", version, arg_required_else_help = true, after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// TOML file of options by their names; flags and environment variables take precedence
    #[arg(long, global = true, env = "KVASIR_CONFIG", value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
    /// Print the options as a TOML file instead of running
    #[arg(long, global = true)]
    pub(crate) print_config: bool,
}

/// A parsed command line.
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    pub(crate) matches: ArgMatches,
}

impl Cli {
    /// Parses arguments (the program's name first) and merges those of an options file. Exits the
    /// process for `--help`, `--version` and a command without its subcommand.
    pub(crate) fn parse_arguments(arguments: Vec<OsString>) -> Result<Parsed, Failure> {
        let arguments = translate(&Self::command(), arguments)?;
        let arguments = with_file(Self::command(), arguments)?;
        let matches = match help::arranged(Self::command()).try_get_matches_from(arguments) {
            Ok(matches) => matches,
            // A command with subcommands prints their list.
            Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            Err(error) if error.use_stderr() => {
                return Err(Failure::usage(one_line(&error.to_string())));
            }
            Err(error) => error.exit(),
        };
        let cli = Self::from_arg_matches(&matches).map_err(|e| Failure::usage(one_line(&e.to_string())))?;
        Ok(Parsed { cli, matches })
    }

    /// Checks whether `kvasir serve` accepts an options file.
    pub(crate) fn check_file(path: &Path) -> Result<(), Failure> {
        let args = ["kvasir".into(), "serve".into(), "--config".into(), path.as_os_str().to_owned()];
        let args = with_file(Self::command(), args.into())?;
        let cli = Self::try_parse_from(args)
            .map_err(|e| Failure::usage(format!("{}: {}", path.display(), one_line(&e.to_string()))))?;
        cli.command.check()
    }
}

/// Reduces a clap error to one line: its first paragraph, plus a suggestion of a similar spelling.
pub(crate) fn one_line(text: &str) -> String {
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
    fn mistyped_words_get_a_suggestion() {
        let message =
            |args: &[&str]| one_line(&Cli::command().try_get_matches_from(args).unwrap_err().to_string());
        assert_eq!(
            message(&["kvasir", "servee"]),
            "unrecognized subcommand 'servee'; a similar subcommand exists: 'serve'"
        );
        assert_eq!(
            message(&["kvasir", "serve", "--prot", "1"]),
            "unexpected argument '--prot' found; a similar argument exists: '--port'"
        );
        assert_eq!(message(&["kvasir", "serve", "--port", "x"]).lines().count(), 1);
    }
}
