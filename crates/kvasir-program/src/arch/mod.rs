//! The architectures, one value in one file each: names in Hugging Face and in GGUF, defaults of
//! absent config keys, and the functions that build the programs from blocks.
//!
//! Everything that depends on the architecture follows from its [`Architecture`]: which checkpoints
//! are read, how they are converted, what `inspect` prints and the table of
//! `docs/reference/models.md`. To add one, write its file and add it to `ALL`; a missing part is a
//! compile error or fails `kvasir-formats/tests/architectures.rs`.

pub(crate) mod bert;
pub(crate) mod canonical_name;
pub(crate) mod class;
pub(crate) mod config_defaults;
pub(crate) mod deepseek;
pub(crate) mod deepseek_v4;
pub(crate) mod falcon_h1;
pub(crate) mod gemma3;
pub(crate) mod gemma4;
pub(crate) mod glm4_moe;
pub(crate) mod glm4_moe_lite;
pub(crate) mod glm5_next;
pub(crate) mod gpt_oss;
pub(crate) mod granite;
pub(crate) mod kimi_linear;
pub(crate) mod lfm2;
pub(crate) mod llama;
pub(crate) mod minimax_m2;
pub(crate) mod ministral3;
pub(crate) mod mistral;
pub(crate) mod mixtral;
pub(crate) mod modernbert;
pub(crate) mod nearest;
pub(crate) mod nemotron_h;
pub(crate) mod olmo3;
pub(crate) mod phi3;
pub(crate) mod qwen;
pub(crate) mod qwen3_5;
pub(crate) mod qwen3_moe;
pub(crate) mod qwen4_exp;
pub(crate) mod smollm3;

use crate::arch::class::{Class, Rename};
use crate::arch::nearest::nearest;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::{ProgramError, Result};
use crate::gguf::Gguf;
use crate::gguf::metadata::Metadata;
use serde_json::{Map, Value as Json};

/// One model architecture that programs can be built for.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// Its classes in Hugging Face. The first is a text model and names the architecture.
    pub classes: &'static [Class],
    /// Hugging Face tensor names that differ from the canonical ones.
    pub renames: &'static [Rename],
    /// Integer tensors whose values are part of the config, as (suffix of the tensor name, config
    /// key).
    pub config_tensors: &'static [(&'static str, &'static str)],
    /// Whether the model is an encoder, which embeds or scores texts and does not generate.
    pub is_encoder: bool,
    /// Its spelling in GGUF.
    pub gguf: Gguf,
    /// Published models, for the documentation.
    pub models: &'static str,
    /// What distinguishes it, for the documentation.
    pub specifics: &'static str,
    /// Fills in absent config keys, with the values of the Transformers config class.
    pub(crate) defaults: fn(&mut Map<String, Json>),
    /// Builds the target model.
    pub(crate) target: fn(&mut Builder<'_>) -> Result<()>,
    /// Builds an MTP layer, if the architecture has any.
    pub(crate) prediction: Option<fn(&mut Builder<'_>) -> Result<()>>,
}

/// In the order of the documentation. Of architectures that share a GGUF name, the first that
/// claims a file gets it.
const ALL: &[&Architecture] = &[
    &qwen::QWEN2,
    &qwen::QWEN3,
    &qwen3_moe::QWEN3_MOE,
    &qwen3_5::dense::QWEN3_5,
    &qwen3_5::moe::QWEN3_5_MOE,
    &qwen3_5::next::QWEN3_NEXT,
    &qwen4_exp::QWEN4_EXP,
    &mixtral::MIXTRAL,
    &llama::LLAMA,
    &mistral::MISTRAL,
    &ministral3::MINISTRAL3,
    &smollm3::SMOLLM3,
    &olmo3::OLMO3,
    &gemma3::GEMMA3,
    &gemma4::GEMMA4,
    &phi3::PHI3,
    &granite::GRANITE,
    &lfm2::dense::LFM2,
    &lfm2::moe::LFM2_MOE,
    &nemotron_h::NEMOTRON_H,
    &falcon_h1::FALCON_H1,
    &gpt_oss::GPT_OSS,
    &glm4_moe::GLM4_MOE,
    &glm4_moe_lite::GLM4_MOE_LITE,
    &minimax_m2::MINIMAX_M2,
    &deepseek::DEEPSEEK_V3,
    &deepseek::DEEPSEEK_V32,
    &deepseek_v4::DEEPSEEK_V4,
    &kimi_linear::KIMI_LINEAR,
    &glm5_next::GLM5_NEXT,
    &bert::BERT,
    &modernbert::MODERN_BERT,
];

impl Architecture {
    /// All supported architectures.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        ALL.iter().copied()
    }

    /// The architecture of this [name](Self::name).
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::all().find(|known| known.name() == name)
    }

    /// The name of its first class.
    pub fn name(&self) -> &'static str {
        self.classes.first().map_or("", |class| class.name)
    }

    /// `model_type` of its first class.
    pub fn model_type(&self) -> &'static str {
        self.classes.first().map_or("", |class| class.model_type)
    }

    /// Whether it has multi-token-prediction (MTP) layers.
    pub fn has_predictions(&self) -> bool {
        self.prediction.is_some()
    }

    /// The architecture of a text model's config: by its first class, or by `model_type` in a
    /// config without classes.
    pub fn of(config: &Json) -> Result<&'static Self> {
        let config = Config::new(config);
        let names = config.texts("architectures")?.unwrap_or_default();
        let (name, by_class) = match (names.first(), config.text("model_type")?) {
            (Some(name), _) => (*name, true),
            (None, Some(model_type)) => (model_type, false),
            (None, None) => return Err(config.bad("architectures", "names none")),
        };
        let is_named = |class: &&'static Class| {
            class.text_of.is_none() && name == if by_class { class.name } else { class.model_type }
        };
        let found = Self::all().find(|known| known.classes.iter().any(|class| is_named(&class)));
        let classes = || Self::all().flat_map(|known| known.classes);
        let known = || classes().map(|class| if by_class { class.name } else { class.model_type });
        found.ok_or_else(|| unknown(name, known()))
    }

    /// The architecture of a GGUF file with this `general.architecture`.
    pub fn of_gguf(name: &str, file: &dyn Metadata) -> Result<&'static Self> {
        let found = Self::all().find(|known| known.gguf.reads(name, file));
        found.ok_or_else(|| unknown(name, Self::all().flat_map(|known| known.gguf.names).copied()))
    }

    /// The classes of this name that hold a text model beside others.
    pub fn multimodal(name: &str) -> impl Iterator<Item = (&'static Self, &'static Class)> {
        let classes = Self::all().flat_map(|known| known.classes.iter().map(move |class| (known, class)));
        classes.filter(move |(_, class)| class.name == name && class.text_of.is_some())
    }
}

fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> ProgramError {
    let nearest = nearest(name, known).unwrap_or_default();
    ProgramError::UnknownArchitecture { name: name.to_owned(), nearest }
}
