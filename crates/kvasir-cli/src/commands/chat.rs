//! `kvasir chat`: arguments, and start of the terminal chat.

use crate::chat::{Beginning, Chat, with_tools};
use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::model::ModelArgs;
use crate::options::sampling::SamplingArgs;
use crate::options::switch::Switch;
use crate::startup::{Service, Started};
use serde_json::Map;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Sampling temperature; 0 is greedy [default: the model's]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Nucleus sampling: cumulative probability that is kept [default: the model's]
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Maximum tokens of an answer [default: what the context length leaves]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Sampling seed [default: a new one for every answer]
    #[arg(long)]
    seed: Option<i64>,
    /// JSON file with a list of tools, in the format of the API
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Save the input history in the user's state directory, on or off
    #[arg(long, env = "KVASIR_CHAT_HISTORY", default_value = "on", value_parser = Switch::read)]
    history: Switch,
    #[command(flatten)]
    sampling_args: SamplingArgs,
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let given = [
            ("temperature", self.temperature.map(Into::into)),
            ("top_p", self.top_p.map(Into::into)),
            ("max_tokens", self.max_tokens.map(Into::into)),
            ("seed", self.seed.map(Into::into)),
        ];
        let fields: Map<_, _> =
            given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let fields = match &self.tools {
            Some(file) => with_tools(&fields, file).map_err(Failure::usage)?,
            None => fields,
        };
        let (model, sampling_args, options) = (self.model, self.sampling_args, self.options);
        let beginning = Beginning {
            start: Box::new(move |path| match path {
                Some(path) => Started::new(
                    &model.with_path(path),
                    None,
                    &sampling_args,
                    &options,
                    Service::for_one_user(),
                ),
                None => Started::new(&model, None, &sampling_args, &options, Service::for_one_user()),
            }),
            system: self.system,
            fields,
            remember: self.history.is_on(),
        };
        Chat::begin(beginning)?.run()
    }
}
