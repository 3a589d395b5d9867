//! `kvasir run`: `kvasir chat` with the question on the command line.

use crate::commands::chat;
use crate::io::failure::Failure;
use crate::options::model::ModelArgs;
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
        if let Some(question) = self.chat.question_as_model() {
            let why =
                format!("`{question}` is no model; name one first: kvasir run {} TEXT", kvasir::BUILT_IN);
            return Err(Failure::usage(why));
        }
        self.chat.with_prompt(self.text.join(" ")).run()
    }
}
