//! `kvasir logits`: prints the next-token logits of a prompt.

use crate::io::failure::Failure;
use crate::options::SequenceOptions;
use crate::options::model::ComputeArgs;
use crate::options::resolve::setup_of;
use crate::options::rules::rule;
use kvasir_kv::Token;
use serde_json::{Map, Value};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    compute: ComputeArgs,
    /// Prompt as token ids, used verbatim
    #[arg(long, value_delimiter = ',', required = true, value_name = "IDS")]
    prompt_ids: Vec<Token>,
    /// Print the logits of every position, not only of the last
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    options: SequenceOptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Answer<'a, T> {
    logits: &'a T,
    setup: Map<String, Value>,
}

impl Args {
    /// Model and backend.
    pub(crate) fn compute(&self) -> &ComputeArgs {
        &self.compute
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        rule(!self.compute.is_simulated(), || "--backend sim computes no logits: give another one".into())?;
        let model = self.compute.load()?;
        rule(!model.program().is_encoder(), || {
            "an encoder has no logits: choose a model that generates".into()
        })?;
        let mut resolved = self.options.resolve(&model, self.prompt_ids.len() + 1)?;
        // Nothing follows the prompt, which may fill the context.
        resolved.limits.max_prompt = Some(resolved.limits.max_model_len);
        let core = resolved.core()?;
        let setup = setup_of(&model, &resolved, &core);
        let rows = model.logits_with(core, resolved.overlap, &self.prompt_ids, self.all)?;
        if self.json {
            let text = if self.all {
                serde_json::to_string(&Answer { logits: &rows, setup })
            } else {
                serde_json::to_string(&Answer { logits: &rows.last(), setup })
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
