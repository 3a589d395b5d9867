mod failure;
mod replay;
mod template;
mod tokenize;

pub(crate) use failure::Failure;

use clap::Subcommand;
use std::process::ExitCode;

/// What can be asked for; a file each.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run recorded operation sequences against the caches and policies and report every mismatch
    Replay(replay::Args),
    /// Render a chat template over conversations from stdin
    Template(template::Args),
    /// Turn texts from stdin into token ids
    Tokenize(tokenize::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Replay(args) => args.run(),
            Self::Template(args) => args.run(),
            Self::Tokenize(args) => args.run(),
        }
    }
}
