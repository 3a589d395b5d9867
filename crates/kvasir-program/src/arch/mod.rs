//! The architecture table: one file per model family, each a function that builds the ops from
//! blocks.
//!
//! To add an architecture: write its file, add a line to `ALL`, and add the defaults of absent
//! config keys to `config_defaults.rs`.

pub(crate) mod config_defaults;
pub(crate) mod deepseek;
pub(crate) mod gemma3;
pub(crate) mod glm4_moe;
pub(crate) mod gpt_oss;
pub(crate) mod llama;
pub(crate) mod mixtral;
pub(crate) mod phi3;
pub(crate) mod qwen;
pub(crate) mod qwen3_moe;

use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::{ProgramError, Result};
use serde_json::Value as Json;

/// One model architecture that programs can be built for.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// The class name in `architectures` of `config.json`.
    pub name: &'static str,
    pub(crate) target: fn(&mut Builder<'_>) -> Result<()>,
    /// Builds an MTP layer, if the architecture has any.
    pub(crate) prediction: Option<fn(&mut Builder<'_>) -> Result<()>>,
}

const fn plain(name: &'static str, target: fn(&mut Builder<'_>) -> Result<()>) -> Architecture {
    Architecture { name, target, prediction: None }
}

const fn predicting(
    name: &'static str,
    target: fn(&mut Builder<'_>) -> Result<()>,
    prediction: fn(&mut Builder<'_>) -> Result<()>,
) -> Architecture {
    Architecture { name, target, prediction: Some(prediction) }
}

const ALL: &[Architecture] = &[
    predicting("Qwen3ForCausalLM", qwen::qwen3, qwen::qwen3_prediction),
    plain("Qwen3MoeForCausalLM", qwen3_moe::target),
    plain("LlamaForCausalLM", llama::llama),
    plain("MixtralForCausalLM", mixtral::target),
    predicting("DeepseekV3ForCausalLM", deepseek::v3, deepseek::v3_prediction),
    predicting("DeepseekV32ForCausalLM", deepseek::v32, deepseek::v32_prediction),
    plain("GptOssForCausalLM", gpt_oss::target),
    predicting("Glm4MoeForCausalLM", glm4_moe::target, glm4_moe::prediction),
    plain("Qwen2ForCausalLM", qwen::qwen2),
    plain("MistralForCausalLM", llama::mistral),
    plain("Gemma3ForCausalLM", gemma3::target),
    plain("Phi3ForCausalLM", phi3::target),
];

impl Architecture {
    /// All supported architectures.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().copied()
    }

    /// The architecture that a config names first.
    pub fn of(config: &Json) -> Result<Self> {
        let config = Config::new(config);
        let names = config.texts("architectures")?.unwrap_or_default();
        let name = names.first().ok_or_else(|| config.bad("architectures", "names none"))?;
        let found = Self::all().find(|a| a.name == *name);
        found.ok_or_else(|| ProgramError::UnknownArchitecture {
            name: (*name).to_owned(),
            known: Self::all().map(|known| known.name).collect(),
        })
    }
}
