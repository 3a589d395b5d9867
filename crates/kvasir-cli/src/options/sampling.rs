//! Options for default sampling, prompts and output parsing: generation config, chat template, tool
//! parser, reasoning parser.

use crate::io::failure::Failure;
use crate::options::switch::Switch;
use clap::builder::PossibleValuesParser;
use kvasir::{OpenedModel, Sampling};
use kvasir_chat::ChatModel;
use kvasir_chat::dialect::{ReasoningDialect, ToolDialect};
use serde_json::{Map, Value};
use std::{fs, path::PathBuf};

/// Sampling defaults and output parsers of the served model.
#[derive(clap::Args)]
pub(crate) struct SamplingArgs {
    /// Default sampling parameters: `auto` reads the model's generation_config.json, `none` ignores it
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_GENERATION_CONFIG")]
    generation_config: GenerationConfig,
    /// File of a chat template to use instead of the model's
    #[arg(long, env = "KVASIR_CHAT_TEMPLATE", value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// JSON object of variables for the chat template, such as {"enable_thinking": false}; requests may replace them
    #[arg(long, env = "KVASIR_CHAT_TEMPLATE_KWARGS", value_name = "JSON", value_parser = kwargs)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Tool call format of the model [default: detected from its chat template]
    #[arg(long, env = "KVASIR_TOOL_PARSER", value_name = "NAME", value_parser = PossibleValuesParser::new(ToolDialect::names()))]
    tool_parser: Option<String>,
    /// Reasoning format of the model [default: detected from its chat template]
    #[arg(long, env = "KVASIR_REASONING_PARSER", value_name = "NAME", value_parser = PossibleValuesParser::new(ReasoningDialect::names().chain(["none"])))]
    reasoning_parser: Option<String>,
    /// Constrain tool calls to the tools' JSON schemas under `tool_choice: auto`, on or off
    #[arg(long, env = "KVASIR_CONSTRAIN_TOOL_CALLS", default_value = "on", value_parser = Switch::read)]
    constrain_tool_calls: Switch,
    /// When an answer fills the context, drop the older half of it and go on, on or off; for /completion, Ollama's routes and `kvasir chat`
    #[arg(long, env = "KVASIR_CONTEXT_SHIFT", default_value = "off", value_parser = Switch::read)]
    context_shift: Switch,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum GenerationConfig {
    Auto,
    None,
}

impl SamplingArgs {
    /// Default sampling parameters.
    pub(crate) fn sampling(&self, opened: &OpenedModel) -> Result<Sampling, Failure> {
        match self.generation_config {
            GenerationConfig::Auto => Ok(opened.sampling_defaults()?),
            GenerationConfig::None => Ok(OpenedModel::plain_sampling()),
        }
    }

    /// Cap on answer tokens from the generation config.
    pub(crate) fn max_new_tokens(&self, opened: &OpenedModel) -> Result<Option<u32>, Failure> {
        match self.generation_config {
            GenerationConfig::Auto => Ok(opened.max_new_tokens()?),
            GenerationConfig::None => Ok(None),
        }
    }

    /// Refuses a model without a chat template, unless one is given.
    pub(crate) fn check_template(&self, opened: &OpenedModel, name: &str) -> Result<(), Failure> {
        if self.chat_template.is_some()
            || opened.text_files()?.template_source(None).map_err(Failure::failed)?.is_some()
        {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{name} has no chat template: give one with --chat-template FILE, or complete a text with kvasir generate"
        )))
    }

    /// Whether requests may shift their context.
    pub(crate) fn shifts_context(&self) -> bool {
        self.context_shift.is_on()
    }

    /// Applies the template and the parser options to a chat model.
    pub(crate) fn configure(&self, model: ChatModel) -> Result<ChatModel, Failure> {
        let model = match &self.chat_template {
            Some(path) => {
                let at = |why: String| Failure::usage(format!("--chat-template {}: {why}", path.display()));
                let source = fs::read_to_string(path).map_err(|e| at(e.to_string()))?;
                model.with_template(&source).map_err(|e| at(e.to_string()))?
            }
            None => model,
        };
        let model = model.with_template_kwargs(self.chat_template_kwargs.clone().unwrap_or_default());
        let tools = self.tool_parser.as_deref().and_then(ToolDialect::named);
        let tools = tools.unwrap_or_else(|| model.tool_dialect());
        let reasoning = match self.reasoning_parser.as_deref() {
            None => model.reasoning_dialect(),
            Some(name) => ReasoningDialect::named(name),
        };
        Ok(model.with_dialects(tools, reasoning).with_constrained_calls(self.constrain_tool_calls.is_on()))
    }
}

fn kwargs(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("must be a JSON object: {e}"))
}
