//! Command line subcommands, one file each. They parse arguments and call the library; logic lives
//! elsewhere.

pub(crate) mod bench;
pub(crate) mod bench_broadcast;
pub(crate) mod bench_fidelity;
pub(crate) mod bench_offline;
pub(crate) mod bench_serve;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod models;
pub(crate) mod ps;
pub(crate) mod rank;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod template;
pub(crate) mod tokenize;
pub(crate) mod tokenizer;
pub(crate) mod worker;

use crate::commands::doctor::FileCheck;
use crate::io::failure::Failure;

use clap::Subcommand;
use kvasir_cpu::Isa;
use kvasir_fleet::set_parent_death_signal;
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// The command line as a whole, for the commands that need more of it than their own arguments.
pub(crate) struct CommandLine {
    /// Path of the options file, whose options are merged already.
    pub(crate) config: Option<PathBuf>,
    /// Validates another options file.
    pub(crate) check: FileCheck,
    /// The definition of all commands and options.
    pub(crate) definition: clap::Command,
    /// The arguments as they were given, the program's name first.
    pub(crate) arguments: Vec<OsString>,
    /// Parses another list of arguments, such as those that `kvasir worker` passes on.
    pub(crate) parse: Parse,
}

impl CommandLine {
    /// Begins a process that `serve` has started: makes it end with its parent, and parses the
    /// arguments of `serve`. Fails with `usage` if they belong to another command.
    pub(crate) fn begin_child(
        &self,
        arguments: Vec<OsString>,
        usage: &str,
    ) -> Result<Box<serve::Args>, Failure> {
        set_parent_death_signal().map_err(Failure::failed)?;
        match (self.parse)(arguments)? {
            Command::Serve(serve) => Ok(serve),
            _ => Err(Failure::usage(usage)),
        }
    }
}

/// Parses arguments, the program's name first.
pub(crate) type Parse = fn(Vec<OsString>) -> Result<Command, Failure>;

/// The subcommands, a file each.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Chat with a model in the terminal
    Chat(Box<chat::Args>),
    /// Chat, with the question on the command line
    Run(Box<run::Run>),
    /// List the models on this machine
    #[command(visible_alias = "list", alias = "ls")]
    Models(models::Models),
    /// List the models that a running server has loaded
    Ps(ps::Ps),
    /// Fetch a model from the hub
    Pull(models::Pull),
    /// Complete a prompt
    Generate(Box<generate::Args>),
    /// Print the logits of the next token
    Logits(logits::Args),
    /// Show a model's architecture, program, KV cache layout and memory plan
    Inspect(inspect::Args),
    /// Quantize or repack a model into a GGUF file
    Convert(convert::Args),
    /// Diagnose the machine, a model and a configuration
    Doctor(doctor::Args),
    /// Measure speed, and its share of the machine's limits (roofline)
    Bench(Box<bench::Args>),
    /// Run recorded operation sequences against the caches and policies and report every mismatch
    Replay(replay::Args),
    /// Serve a model over HTTP: OpenAI's and Anthropic's APIs and a web page
    Serve(Box<serve::Args>),
    /// Simulate a workload: the real scheduler and KV cache on a device with modeled step times
    Sim(Box<sim::Args>),
    /// Render a chat template over conversations from stdin
    Template(template::Args),
    /// Tokenize texts from stdin
    Tokenize(tokenize::Args),
    /// Run one engine of `serve --dp`; started by `serve`, not by users
    #[command(hide = true)]
    Worker(worker::Args),
    /// Run one rank of an engine of `serve --tp`; started by `serve`, not by users
    #[command(hide = true)]
    Rank(rank::Args),
    /// Run one tokenizer of `serve --tokenizer-processes`; started by `serve`, not by users
    #[command(hide = true)]
    Tokenizer(tokenizer::Args),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Write the manual pages
    Manual(completions::Manual),
}

impl Command {
    /// Validates arguments as far as possible without running.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Serve(args) => args.check().map(drop),
            _ => Ok(()),
        }
    }

    /// The limit of the instruction set, checked against the backend.
    fn instructions(&self) -> Result<Option<Isa>, Failure> {
        match self {
            Self::Chat(args) => args.model().compute().instructions(),
            Self::Run(args) => args.model().compute().instructions(),
            Self::Generate(args) => args.model().compute().instructions(),
            Self::Logits(args) => args.compute().instructions(),
            Self::Doctor(args) => Ok(args.instructions()),
            Self::Bench(args) => args.instructions(),
            Self::Serve(args) => args.model().compute().instructions(),
            _ => Ok(None),
        }
    }

    /// Runs the command.
    pub(crate) fn run(self, line: CommandLine) -> Result<ExitCode, Failure> {
        if let Some(level) = self.instructions()? {
            level.limit();
        }
        match self {
            Self::Chat(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Models(args) => args.run(),
            Self::Ps(args) => args.run(),
            Self::Pull(args) => args.run(),
            Self::Generate(args) => args.run(),
            Self::Logits(args) => args.run(),
            Self::Inspect(args) => args.run(),
            Self::Convert(args) => args.run(),
            Self::Doctor(args) => args.run(line.config, line.check),
            Self::Bench(args) => args.run(),
            Self::Replay(args) => args.run(),
            Self::Sim(args) => args.run(),
            Self::Serve(args) => args.run(line),
            Self::Worker(args) => args.run(&line),
            Self::Rank(args) => args.run(&line),
            Self::Tokenizer(args) => args.run(&line),
            Self::Template(args) => args.run(),
            Self::Tokenize(args) => args.run(),
            Self::Completions(args) => args.run(line.definition),
            Self::Manual(args) => args.run(line.definition),
        }
    }
}
