//! `kvasir tokenizer`: one tokenizer process of `serve --tokenizer-processes`. `serve` passes its own
//! arguments to it, so both parse the same options.

use crate::commands::CommandLine;
use crate::io::failure::Failure;
use crate::startup::build_model;
use crate::startup::tokenizers::{TokenizerCommand, tokenizer_identity};
use kvasir_fleet::{TokenizerProcessConfig, TokenizerStart, run_tokenizer};
use std::{env, ffi::OsString, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Index of the tokenizer process
    #[arg(long)]
    tokenizer: u32,
    /// Number of earlier processes with this index
    #[arg(long)]
    generation: u32,
    /// Arguments of the server, its name first
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// How to start `processes` tokenizer processes of a server with these command-line arguments.
pub(crate) fn command(processes: usize, arguments: Vec<OsString>) -> Result<TokenizerCommand, Failure> {
    let program = env::current_exe().map_err(Failure::failed)?;
    let arguments = Box::new(move |TokenizerStart { tokenizer, generation }| {
        let index = ["tokenizer".into(), "--tokenizer".into(), tokenizer.to_string().into()];
        let generation = ["--generation".into(), generation.to_string().into(), "--".into()];
        index.into_iter().chain(generation).chain(arguments.iter().cloned()).collect()
    });
    Ok(TokenizerCommand { processes, program, arguments })
}

impl Args {
    /// Runs jobs of the server process until the server ends.
    pub(crate) fn run(self, line: &CommandLine) -> Result<ExitCode, Failure> {
        let usage = "`tokenizer` needs the arguments of `kvasir serve` after `--`; \
                     use `kvasir serve --tokenizer-processes N`";
        let serve = line.begin_child(self.arguments, usage)?;
        let (model, _, sampling_args, _) = serve.for_worker();
        let opened = model.open()?;
        // Tokenization depends neither on the context length nor on the backend.
        let chat = build_model(String::new(), &opened, false, &sampling_args, None, 0)?.chat;
        let identity = tokenizer_identity(opened.checkpoint.fingerprint(), &chat);
        let Self { tokenizer, generation, .. } = self;
        run_tokenizer(TokenizerProcessConfig { tokenizer, generation, identity, chat })
            .map_err(Failure::failed)?;
        Ok(ExitCode::SUCCESS)
    }
}
