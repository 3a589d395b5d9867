//! `kvasir run`: `kvasir chat` with the question on the command line.
//!
//! A first word that names no model begins a question to the built-in one, unless it resembles the name of a model and
//! more words follow.

use crate::commands::chat;
use crate::io::failure::Failure;
use crate::options::model::ModelArgs;
use kvasir::ShortNames;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Run {
    #[command(flatten)]
    chat: chat::Args,
    /// The question; without one, an interactive chat begins
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
}

impl Run {
    /// Model and backend options.
    pub(crate) fn model(&self) -> &ModelArgs {
        self.chat.model()
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let Some(word) = self.chat.model().which().unknown() else {
            return self.chat.with_prompt(self.text.join(" ")).run();
        };
        let built_in = kvasir::BUILT_IN;
        let known = ShortNames::nearest(&word);
        if let (Some(known), false) = (&known, self.text.is_empty()) {
            let text = self.text.join(" ");
            return Err(Failure::usage(format!(
                "`{word}` is no known model; similar: `{known}`; to send the whole text to {built_in}: kvasir run {built_in} '{word} {text}'"
            )));
        }
        if let Some(known) = known {
            eprintln!(
                "kvasir: `{word}` is no known model and is taken as text for {built_in}; similar: `{known}`; `kvasir models` lists those on this machine"
            );
        }
        let words: Vec<String> = [word].into_iter().chain(self.text).collect();
        self.chat.with_built_in().with_prompt(words.join(" ")).run()
    }
}
