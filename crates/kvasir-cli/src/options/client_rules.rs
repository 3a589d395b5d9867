//! Options for clients: names of the model, fetches of other models, unknown fields, Claude Code's
//! billing header, reranking.

use crate::options::hub_fetch::fetch_model;
use crate::options::switch::Switch;
use clap::builder::BoolishValueParser;
use kvasir_serve::{
    http::{ClientRules, FetchModel},
    request::{Scoring, UnknownFields},
};

/// Compatibility options of `serve`.
#[derive(clap::Args)]
pub(crate) struct ClientRuleArgs {
    /// Model name in the API; may be given several times, and * accepts any name [default: the name of its file or directory]
    #[arg(long, env = "KVASIR_MODEL_NAME", value_name = "NAME", value_delimiter = ',', value_parser = public_name)]
    model_name: Vec<String>,
    /// Unknown request fields: ignore (named in the response header x-kvasir-ignored) or refuse (400)
    #[arg(long, value_enum, default_value = "ignore", env = "KVASIR_UNKNOWN_FIELDS")]
    unknown_fields: Unknown,
    /// Remove Claude Code's billing header, which changes with every request, from system prompts, so that the prefix cache hits, on or off
    #[arg(long, default_value = "on", env = "KVASIR_STRIP_BILLING_HEADER", value_parser = Switch::read)]
    strip_billing_header: Switch,
    /// How /v1/rerank and /v1/score compare texts unless a request says: embeddings (cosine) or prompt (probability of `yes`)
    #[arg(long, value_enum, default_value = "embeddings", env = "KVASIR_RERANK_BY")]
    rerank_by: RerankBy,
    /// Fetch models from the hub into its cache for clients of /api/pull; if an admin key exists, only with that key
    #[arg(long, env = "KVASIR_ALLOW_PULL", value_parser = BoolishValueParser::new())]
    allow_pull: bool,
}

fn public_name(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("the name is empty".into()) } else { Ok(text.to_owned()) }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Unknown {
    Ignore,
    Refuse,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum RerankBy {
    Embeddings,
    Prompt,
}

impl ClientRuleArgs {
    /// The model's public name, if one is given: the first that is not `*`.
    pub(crate) fn own_name(&self) -> Option<&String> {
        self.model_name.iter().find(|name| *name != "*")
    }

    /// The rules, with this limit of priorities.
    pub(crate) fn rules(&self, max_priority: Option<i32>) -> ClientRules {
        let own = self.own_name();
        ClientRules {
            aliases: self.model_name.iter().filter(|name| Some(*name) != own).cloned().collect(),
            unknown_fields: match self.unknown_fields {
                Unknown::Ignore => UnknownFields::Ignore,
                Unknown::Refuse => UnknownFields::Refuse,
            },
            strip_billing_header: self.strip_billing_header.is_on(),
            max_priority: max_priority.unwrap_or(i32::MAX),
            scoring: match self.rerank_by {
                RerankBy::Embeddings => Scoring::Embeddings,
                RerankBy::Prompt => Scoring::Prompt { instruction: None },
            },
            fetch_model: self.allow_pull.then_some(fetch_model as FetchModel),
            slot_files: None,
        }
    }
}
