//! Command line subcommands, one file each. They parse arguments and call the library; logic lives
//! elsewhere.

pub(crate) mod bench;
pub(crate) mod bench_offline;
pub(crate) mod bench_serve;
pub(crate) mod chat;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod template;
pub(crate) mod tokenize;

use crate::commands::doctor::FileCheck;
use crate::io::failure::Failure;

use clap::Subcommand;
use std::{path::PathBuf, process::ExitCode};

/// What can be asked for; a file each.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Talk to a model in the terminal
    Chat(Box<chat::Args>),
    /// Complete one prompt
    Generate(Box<generate::Args>),
    /// Print what a model says of the next token
    Logits(logits::Args),
    /// Show a model's architecture, program, K/V facts and memory plan
    Inspect(inspect::Args),
    /// Quantise or re-pack a model to a GGUF file
    Convert(convert::Args),
    /// Look at this machine, a model and a configuration, and say what is missing
    Doctor(doctor::Args),
    /// Measure speed, beside its distance from what the machine can do
    Bench(bench::Args),
    /// Run recorded operation sequences against the caches and policies and report every mismatch
    Replay(replay::Args),
    /// Serve a model over HTTP, the way OpenAI's API does
    Serve(Box<serve::Args>),
    /// Run the real policy and cache on a simulated device
    Sim(Box<sim::Args>),
    /// Render a chat template over conversations from stdin
    Template(template::Args),
    /// Turn texts from stdin into token ids
    Tokenize(tokenize::Args),
}

impl Command {
    /// Validates arguments as far as possible without running.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Serve(args) => args.check().map(drop),
            _ => Ok(()),
        }
    }

    /// Runs the command. `config` is the path of the options file, whose options are merged
    /// already; `check` validates such a file.
    pub(crate) fn run(self, config: Option<PathBuf>, check: FileCheck) -> Result<ExitCode, Failure> {
        match self {
            Self::Chat(args) => args.run(),
            Self::Generate(args) => args.run(),
            Self::Logits(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Convert(args) => args.run(),
            Self::Doctor(args) => args.run(config, check),
            Self::Bench(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Sim(args) => args.run(),
            Self::Serve(args) => args.run(),
            Self::Template(args) => args.run(),
            Self::Tokenize(args) => args.run(),
        }
    }
}
