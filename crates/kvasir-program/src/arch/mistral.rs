//! Mistral: Llama without biases, with a sliding window in all layers.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::HEADS;
use crate::gguf::transform::INTERLEAVED;

pub(crate) static MISTRAL: Architecture = Architecture {
    classes: &[
        Class::text("MistralForCausalLM", "mistral"),
        Class::vision("Mistral3ForConditionalGeneration", "mistral"),
    ],
    // GGUF stores Mistral as Llama, from which only the embedded config tells it.
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["llama"],
        written: |_| "llama",
        claims: |_| true,
        tensors: &[],
        transforms: &[INTERLEAVED],
        rules: &[HEADS],
    },
    models: "Mistral, Ministral 8B",
    specifics: "sliding windows",
    defaults: |config| fill(config, [("sliding_window", 4096.into())]),
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let (attention, ffn) = (Attention::read(b.config)?, FeedForward::read(b.config)?);
    let (window, norms) = (common_window(b.config)?, Norms::rms(b.config)?);
    let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, window), |b, p, h| ffn.build(b, p, h))
    })
}
