//! `kvasir chat`: arguments, and start of the terminal chat.

use crate::chat::editor::Keys;
use crate::chat::{Beginning, Chat, one_shot, with_tools};
use crate::io::failure::Failure;
use crate::options::Options;
use crate::options::model::ModelArgs;
use crate::options::samplers::SamplerArgs;
use crate::options::sampling::SamplingArgs;
use crate::options::switch::Switch;
use crate::startup::{Service, Started};
use kvasir_sample::Sampling;
use serde_json::Map;
use std::{path::PathBuf, process::ExitCode};

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Answer this question and exit; text on stdin is appended to it
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Print the answer to --prompt as one JSON object
    #[arg(long)]
    json: bool,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Sampling temperature; 0 is greedy [default: the model's]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Nucleus sampling: cumulative probability that is kept [default: the model's]
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Top-k sampling; 0 keeps all tokens [default: the model's]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Minimum probability, relative to the most likely token [default: the model's]
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Repetition penalty; above 1 makes tokens that occurred less likely [default: the model's]
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f64>,
    #[command(flatten)]
    samplers: SamplerArgs,
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
    /// Key bindings of the line editor
    #[arg(long, env = "KVASIR_EDIT_MODE", default_value = "emacs", value_enum)]
    edit_mode: Keys,
    #[command(flatten)]
    sampling_args: SamplingArgs,
    #[command(flatten)]
    options: Options,
}

impl Args {
    /// Model and backend options.
    pub(crate) fn model(&self) -> &ModelArgs {
        &self.model
    }

    /// The same with this question; an empty one begins an interactive chat.
    pub(crate) fn with_prompt(mut self, text: String) -> Self {
        if !text.is_empty() {
            self.prompt = Some(text);
        }
        self
    }

    /// The same for the built-in model.
    pub(crate) fn with_built_in(self) -> Self {
        Self { model: self.model.with_built_in(), ..self }
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        if self.json && self.prompt.is_none() {
            return Err(Failure::usage("--json prints the answer to one question: give --prompt TEXT"));
        }
        let given = [
            ("temperature", self.temperature.map(Into::into)),
            ("top_p", self.top_p.map(Into::into)),
            ("top_k", self.top_k.map(Into::into)),
            ("min_p", self.min_p.map(Into::into)),
            ("repetition_penalty", self.repetition_penalty.map(Into::into)),
            ("max_tokens", self.max_tokens.map(Into::into)),
            ("seed", self.seed.map(Into::into)),
        ];
        let mut fields: Map<_, _> =
            given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        self.samplers.read(&Sampling::default())?;
        fields.extend(self.samplers.fields());
        let fields = match &self.tools {
            Some(file) => {
                with_tools(&fields, file).map_err(|why| Failure::usage(format!("--tools {why}")))?
            }
            None => fields,
        };
        let (model, sampling_args, options) = (self.model, self.sampling_args, self.options);
        let service = move || Service { shows_progress: !self.json, ..Service::for_one_user() };
        let beginning = Beginning {
            start: Box::new(move |path| match path {
                Some(path) => Started::new(&model.with_path(path), None, &sampling_args, &options, service()),
                None => Started::new(&model, None, &sampling_args, &options, service()),
            }),
            system: self.system,
            fields,
            remember: self.history.is_on(),
            keys: self.edit_mode,
        };
        match self.prompt {
            Some(prompt) => one_shot::run(beginning, &prompt, self.json),
            None => Chat::begin(beginning)?.run(),
        }
    }
}
