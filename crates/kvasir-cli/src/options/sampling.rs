//! Options for default sampling and output parsing: generation config, tool parser, reasoning
//! parser.

use crate::io::failure::Failure;
use crate::options::switch::Switch;
use clap::builder::PossibleValuesParser;
use kvasir::{LoadedModel, OpenedModel, Sampling};
use kvasir_serve::{
    answer::{ReasoningDialect, ToolDialect},
    model::Model,
};

/// Sampling defaults and output parsers of the served model.
#[derive(clap::Args)]
pub(crate) struct SamplingArgs {
    /// Default sampling parameters: `auto` reads the model's generation_config.json, `none` ignores it
    #[arg(long, value_enum, default_value = "auto", env = "KVASIR_GENERATION_CONFIG")]
    generation_config: GenerationConfig,
    /// Tool call format of the model [default: detected from its chat template]
    #[arg(long, env = "KVASIR_TOOL_PARSER", value_name = "NAME", value_parser = PossibleValuesParser::new(ToolDialect::names()))]
    tool_parser: Option<String>,
    /// Reasoning format of the model [default: detected from its chat template]
    #[arg(long, env = "KVASIR_REASONING_PARSER", value_name = "NAME", value_parser = PossibleValuesParser::new(ReasoningDialect::names().chain(["none"])))]
    reasoning_parser: Option<String>,
    /// Constrain tool calls to the tools' JSON schemas under `tool_choice: auto`, on or off
    #[arg(long, env = "KVASIR_CONSTRAIN_TOOL_CALLS", default_value = "on", value_parser = Switch::read)]
    constrain_tool_calls: Switch,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum GenerationConfig {
    Auto,
    None,
}

impl SamplingArgs {
    /// Default sampling parameters.
    pub(crate) fn sampling(&self, loaded: &LoadedModel) -> Result<Sampling, Failure> {
        match self.generation_config {
            GenerationConfig::Auto => Ok(loaded.opened.sampling_defaults()?),
            GenerationConfig::None => Ok(OpenedModel::plain_sampling()),
        }
    }

    /// Cap on answer tokens from the generation config.
    pub(crate) fn max_new_tokens(&self, loaded: &LoadedModel) -> Result<Option<u32>, Failure> {
        match self.generation_config {
            GenerationConfig::Auto => Ok(loaded.opened.max_new_tokens()?),
            GenerationConfig::None => Ok(None),
        }
    }

    /// Applies the parser options to a served model.
    pub(crate) fn teach(&self, model: Model) -> Model {
        let tools = self.tool_parser.as_deref().and_then(ToolDialect::named);
        let tools = tools.unwrap_or_else(|| model.tool_dialect());
        let reasoning = match self.reasoning_parser.as_deref() {
            None => model.reasoning_dialect(),
            Some(name) => ReasoningDialect::named(name),
        };
        model.with_dialects(tools, reasoning).with_constrained_calls(self.constrain_tool_calls.is_on())
    }
}
