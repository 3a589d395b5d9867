mod failure;
mod replay;

pub(crate) use failure::Failure;

use clap::Subcommand;
use std::process::ExitCode;

/// What can be asked for; a file each.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run recorded operation sequences against the caches and policies and report every mismatch
    Replay(replay::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Replay(args) => args.run(),
        }
    }
}
