//! OLMo 3: norms after attention and feed-forward instead of before, QK-norm over all heads
//! together, and sliding windows in three of four layers. Position scaling applies to the others.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::listed_windows;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::{HEADS, QKV_BIAS, WINDOW};
use crate::gguf::rule::Rule;
use crate::gguf::tensor_name::TensorName::Stem;
use crate::gguf::windows::{read_pattern, write_pattern};

pub(crate) static OLMO3: Architecture = Architecture {
    classes: &[Class::text("Olmo3ForCausalLM", "olmo3")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["olmo2"],
        written: |_| "olmo2",
        claims: |_| true,
        tensors: &[&[
            Stem("post_attention_norm", "post_attention_layernorm"),
            Stem("post_ffw_norm", "post_feedforward_layernorm"),
        ]],
        transforms: &[],
        rules: &[
            HEADS,
            QKV_BIAS,
            WINDOW,
            &[Rule::Code { read: read_pattern::<4>, write: write_pattern::<4> }],
        ],
    },
    models: "OLMo 3",
    specifics: "norms after each block, norms over all heads, alternating windows, YaRN on full layers",
    defaults: |config| fill(config, [("rms_norm_eps", 1e-5.into()), ("sliding_window", 4096.into())]),
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (bias, norms) = (c.flag_or("attention_bias", false)?, Norms::rms(c)?);
    let attention =
        Attention { bias, out_bias: bias, norms: Some(norms), wide_norms: true, ..Attention::read(c)? };
    let ffn = FeedForward::read(c)?;
    let windows = listed_windows(c, |layer| !(layer + 1).is_multiple_of(4))?;
    let rope = RopeConfig::read(c)?;
    let (local, global) = (attention.rope(b, rope.unscaled(), 1.0)?, attention.rope(b, rope, 1.0)?);
    decoder(b, 1.0, norms, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let window = windows.get(i).copied().flatten();
        let rope = if window.is_some() { local } else { global };
        let h = attention.build(b, i, x, rope, window)?;
        let h = norms.row(b, h, &format!("{p}post_attention_layernorm"))?;
        let x = b.add(x, h)?;
        let h = ffn.build(b, &format!("{p}mlp."), x)?;
        let h = norms.row(b, h, &format!("{p}post_feedforward_layernorm"))?;
        b.add(x, h)
    })
}
