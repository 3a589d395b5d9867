//! SmolLM3: Llama with layers that do not rotate (NoPE).

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::listed_windows;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::{HEADS, QKV_BIAS};
use crate::gguf::rule::Rule;
use crate::gguf::transform::INTERLEAVED;

pub(crate) static SMOLLM3: Architecture = Architecture {
    classes: &[Class::text("SmolLM3ForCausalLM", "smollm3")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["smollm3"],
        written: |_| "smollm3",
        claims: |_| true,
        tensors: &[],
        transforms: &[INTERLEAVED],
        // GGUF has no key for the layers without RoPE: its readers take every fourth.
        rules: &[HEADS, QKV_BIAS, &[Rule::HasTensor { config: "mlp_bias", tensor: "blk.0.ffn_gate.bias" }]],
    },
    models: "SmolLM3",
    specifics: "layers without RoPE",
    defaults: |config| fill(config, [("rope_theta", 2e6.into()), ("num_key_value_heads", 4.into())]),
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (bias, norms) = (c.flag_or("attention_bias", false)?, Norms::rms(c)?);
    let attention = Attention { bias, out_bias: bias, ..Attention::read(c)? };
    let ffn = FeedForward { bias: c.flag_or("mlp_bias", false)?, ..FeedForward::read(c)? };
    let rotated = rotated_layers(c)?;
    // Without `layer_types`, the class has windows in layers without RoPE only.
    let windows = if c.flag_or("use_sliding_window", false)? {
        listed_windows(c, |layer| !rotated.get(layer).copied().unwrap_or(true))?
    } else {
        Vec::new()
    };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let rope = Some(rope).filter(|_| rotated.get(i).copied().unwrap_or(true));
        let window = windows.get(i).copied().flatten();
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, window), |b, p, h| ffn.build(b, p, h))
    })
}

/// Whether each layer has RoPE: as `no_rope_layers` says (1 is yes), else all but every n-th.
fn rotated_layers(c: Config<'_>) -> Result<Vec<bool>> {
    let layers = c.number("num_hidden_layers")?;
    let listed = c.counts("no_rope_layers")?;
    if listed.is_empty() {
        let every = c.size_or("no_rope_layer_interval", 4)?;
        return Ok((1..=layers).map(|n| !n.is_multiple_of(every)).collect());
    }
    if listed.len() != layers {
        let why = format!("has {} entries for {layers} layers", listed.len());
        return Err(c.bad("no_rope_layers", why));
    }
    Ok(listed.into_iter().map(|rotates| rotates != 0).collect())
}
