//! Command line subcommands, one file each. They parse arguments and call the library; logic lives
//! elsewhere.

mod bench;
mod bench_offline;
mod bench_serve;
mod chat;
mod convert;
mod doctor;
mod failure;
mod form;
mod generate;
mod inspect;
mod interruption;
mod logits;
mod model;
mod progress;
mod replay;
mod sampling_args;
mod serve;
mod sim;
mod startup;
mod template;
mod tokenize;
mod whole_file;
mod workload;

pub(crate) use failure::Failure;
pub(crate) use startup::Started;

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
    /// already.
    pub(crate) fn run(self, config: Option<PathBuf>) -> Result<ExitCode, Failure> {
        match self {
            Self::Chat(args) => args.run(),
            Self::Generate(args) => args.run(),
            Self::Logits(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Convert(args) => args.run(),
            Self::Doctor(args) => args.run(config),
            Self::Bench(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Sim(args) => args.run(),
            Self::Serve(args) => args.run(),
            Self::Template(args) => args.run(),
            Self::Tokenize(args) => args.run(),
        }
    }
}
