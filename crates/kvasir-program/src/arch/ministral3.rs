//! Ministral 3: Mistral whose queries grow with the position (attention temperature), over YaRN.

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
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::Rule;
use crate::gguf::transform::INTERLEAVED;
use crate::gguf::writer::MetadataWriter;

pub(crate) static MINISTRAL3: Architecture = Architecture {
    classes: &[
        Class::text("Ministral3ForCausalLM", "ministral3"),
        Class::vision("Mistral3ForConditionalGeneration", "ministral3"),
    ],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["mistral3"],
        written: |_| "mistral3",
        claims: |_| true,
        tensors: &[],
        transforms: &[INTERLEAVED],
        rules: &[HEADS, &[Rule::Code { read: read_growth, write: write_growth }]],
    },
    models: "Ministral 3, Mistral 3",
    specifics: "YaRN, queries scaled by position",
    defaults: |config| fill(config, [("rms_norm_eps", 1e-5.into()), ("head_dim", 128.into())]),
    target,
    prediction: None,
};

/// The multiplier is that of both `mscale`s, which cancel out.
fn read_growth(r: &mut ConfigReader<'_>) -> Result<()> {
    if let Some(all) = r.number("rope.scaling.yarn_log_multiplier")
        && r.config.contains_key("rope_scaling")
    {
        r.set_scaling("mscale", all.clone());
        r.set_scaling("mscale_all_dim", all);
    }
    if let Some(beta) = r.number("attention.temperature_scale") {
        r.set_scaling("llama_4_scaling_beta", beta);
        let original = r.number("rope.scaling.original_context_length");
        original.into_iter().for_each(|n| r.set_scaling("original_max_position_embeddings", n));
    }
    Ok(())
}

fn write_growth(w: &mut MetadataWriter<'_>) -> Result<()> {
    for (key, config) in [
        ("rope.scaling.yarn_log_multiplier", "mscale_all_dim"),
        ("attention.temperature_scale", "llama_4_scaling_beta"),
    ] {
        w.rope_float(config).into_iter().for_each(|value| w.float(key, value));
    }
    w.rope_float("original_max_position_embeddings")
        .into_iter()
        .for_each(|n| w.count("rope.scaling.original_context_length", n as usize));
    Ok(())
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let (attention, ffn) = (Attention::read(b.config)?, FeedForward::read(b.config)?);
    let (window, norms) = (common_window(b.config)?, Norms::rms(b.config)?);
    let config = RopeConfig::read(b.config)?;
    let ropes = attention.tempered_ropes(b, config)?;
    decoder(b, 1.0, norms, |b, i, x| {
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, ropes, window), |b, p, h| ffn.build(b, p, h))
    })
}
