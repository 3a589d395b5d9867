//! Gemma 3, text only: a norm before and after both attention and feed-forward, and alternating
//! sliding-window and full-attention layers with a rope each.

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
use crate::gguf::heads::{HEADS, LOGIT_CAP, WINDOW};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Constant, Rule, write_nothing};
use crate::gguf::tensor_name::TensorName::Stem;
use crate::gguf::transform::{StoredAs, Transform};
use crate::gguf::windows::read_pattern;
use crate::gguf::writer::MetadataWriter;
use crate::ir::op::NormKind;
use serde_json::{Value as Json, json};

pub(crate) static GEMMA3: Architecture = Architecture {
    classes: &[
        Class::text("Gemma3ForCausalLM", "gemma3_text"),
        Class::vision("Gemma3ForConditionalGeneration", "gemma3_text"),
    ],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["gemma3"],
        written: |_| "gemma3",
        claims: |_| true,
        tensors: &[&[
            Stem("post_attention_norm", "post_attention_layernorm"),
            Stem("ffn_norm", "pre_feedforward_layernorm"),
            Stem("post_ffw_norm", "post_feedforward_layernorm"),
        ]],
        transforms: &[&[StoredAs { tensors: "norm.weight", transform: Transform::PlusOne }]],
        rules: &[
            HEADS,
            WINDOW,
            LOGIT_CAP,
            &[
                // Other readers take every sixth layer as full and refuse a list.
                Rule::Code { read: read_pattern::<6>, write: write_nothing },
                Rule::Code { read: read_local_rope, write: write_local_rope },
                Rule::Code { read: read_scale, write: write_scale },
                Rule::Implied { config: "hidden_activation", value: Constant::Text("gelu_pytorch_tanh") },
            ],
        ],
    },
    models: "Gemma 3 (text)",
    specifics: "alternating windows, two RoPEs, pre- and post-norms",
    defaults: |config| {
        fill(
            config,
            [
                ("hidden_activation", "gelu_pytorch_tanh".into()),
                ("query_pre_attn_scalar", 256.into()),
                ("sliding_window", 4096.into()),
                ("head_dim", 256.into()),
                ("num_attention_heads", 8.into()),
                ("num_key_value_heads", 4.into()),
                ("vocab_size", 262_208.into()),
                ("max_position_embeddings", 131_072.into()),
            ],
        );
    },
    target,
    prediction: None,
};

fn read_local_rope(r: &mut ConfigReader<'_>) -> Result<()> {
    let theta = r.number("rope.freq_base_swa").unwrap_or(json!(10_000.0));
    r.set("rope_local_base_freq", theta);
    Ok(())
}

fn write_local_rope(w: &mut MetadataWriter<'_>) -> Result<()> {
    let newer = w.json.pointer("/rope_parameters/sliding_attention/rope_theta");
    let theta = newer.or_else(|| w.json.get("rope_local_base_freq")).and_then(Json::as_f64);
    theta.into_iter().for_each(|theta| w.float("rope.freq_base_swa", theta));
    Ok(())
}

/// Other converters do not store the softmax scale. Only the 27B model (62 layers) differs, with
/// hidden_size / heads.
fn read_scale(r: &mut ConfigReader<'_>) -> Result<()> {
    let width = r.uint("attention.key_length").unwrap_or(256);
    let scalar = match (r.uint("block_count"), r.uint("embedding_length"), r.uint("attention.head_count")) {
        (Some(62), Some(hidden), Some(heads)) if heads > 0 => hidden / heads,
        _ => width,
    };
    let stored = r.number("attention.query_pre_attn_scalar");
    r.set("query_pre_attn_scalar", stored.unwrap_or(json!(scalar)));
    Ok(())
}

fn write_scale(w: &mut MetadataWriter<'_>) -> Result<()> {
    let scalar = w.config.opt_positive("query_pre_attn_scalar")?;
    scalar.into_iter().for_each(|scalar| w.float("attention.query_pre_attn_scalar", scalar));
    Ok(())
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    if c.flag_or("use_bidirectional_attention", false)? {
        return Err(
            c.bad("use_bidirectional_attention", "is true: a model that sees what follows cannot generate")
        );
    }
    let kind = if b.source.layout.norm_plus_one { NormKind::Rms } else { NormKind::RmsPlusOne };
    let norms = Norms { kind, ..Norms::rms(c)? };
    let bias = c.flag_or("attention_bias", false)?;
    let attention = Attention::read(c)?;
    let attention = Attention {
        bias,
        out_bias: bias,
        norms: Some(norms),
        scale: c.opt_positive("query_pre_attn_scalar")?.unwrap_or(attention.head_dim as f64).powf(-0.5),
        ..attention
    };
    let ffn = FeedForward::read(c)?;
    let every = c.size_or("sliding_window_pattern", 6)?;
    let windows = listed_windows(c, |layer| !(layer + 1).is_multiple_of(every))?;
    let local = RopeConfig::of_kind(c, "sliding_attention", "rope_local_base_freq", 10_000.0)?;
    let global = RopeConfig::of_kind(c, "full_attention", "rope_theta", 1_000_000.0)?;
    let (local, global) = (attention.rope(b, local, 1.0)?, attention.rope(b, global, 1.0)?);
    let scale = (b.program.hidden as f64).sqrt();
    decoder(b, scale, norms, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let window = windows.get(i).copied().flatten();
        let rope = if window.is_some() { local } else { global };
        let h = norms.row(b, x, &format!("{p}input_layernorm"))?;
        let h = attention.build(b, i, h, rope, window)?;
        let h = norms.row(b, h, &format!("{p}post_attention_layernorm"))?;
        let x = b.add(x, h)?;
        let h = norms.row(b, x, &format!("{p}pre_feedforward_layernorm"))?;
        let h = ffn.build(b, &format!("{p}mlp."), h)?;
        let h = norms.row(b, h, &format!("{p}post_feedforward_layernorm"))?;
        b.add(x, h)
    })
}
