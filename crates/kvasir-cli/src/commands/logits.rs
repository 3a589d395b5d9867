//! `kvasir logits`: prints the next-token logits of a prompt.

use crate::io::failure::Failure;
use crate::options::model::ModelArgs;
use kvasir_kv::Token;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt as token ids, used verbatim
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    prompt_ids: Vec<Token>,
    /// Print the logits of every position, not only of the last
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Answer<'a, T> {
    logits: &'a T,
}

impl Args {
    /// Model and backend options.
    pub(crate) fn model(&self) -> &ModelArgs {
        &self.model
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.model.refuse_generation()?;
        let rows = self.model.load()?.logits(&self.prompt_ids, self.all)?;
        if self.json {
            let text = if self.all {
                serde_json::to_string(&Answer { logits: &rows })
            } else {
                serde_json::to_string(&Answer { logits: &rows.last() })
            };
            println!("{}", text.map_err(Failure::failed)?);
        } else {
            for (at, row) in rows.iter().enumerate() {
                let position = if self.all { at } else { self.prompt_ids.len() - 1 };
                let best = kvasir_sample::top_log_probabilities(row, 10);
                let best: Vec<String> = best.iter().map(|(id, p)| format!("{id} ({p:.3})")).collect();
                println!("after token {position}: {}", best.join(", "));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
