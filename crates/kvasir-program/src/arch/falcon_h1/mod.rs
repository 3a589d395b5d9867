//! Falcon-H1: every layer runs Mamba-2 and attention in parallel on the same normalized input. Most
//! activations have a constant multiplier.
//!
//! `x += s_out * mamba(s_in * h) + a_out * attn(a_in * h)`, then `x += mlp(norm(x))`.

pub(crate) mod metadata;

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::falcon_h1::metadata::{MAMBA, TENSORS, TRANSFORMS};
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, stack};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::mamba2::{GatedNorm, Mamba2, dt_limits};
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Builder, Logits};
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::HEADS;
use serde_json::Value as Json;

pub(crate) static FALCON_H1: Architecture = Architecture {
    classes: &[Class::text("FalconH1ForCausalLM", "falcon_h1")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["falcon-h1"],
        written: |_| "falcon-h1",
        claims: |_| true,
        tensors: &[TENSORS],
        transforms: &[TRANSFORMS],
        rules: &[HEADS, MAMBA],
    },
    models: "Falcon-H1",
    specifics: "Mamba-2 and attention in parallel in each layer, activation multipliers",
    defaults: |config| {
        let values = [
            ("tie_word_embeddings", false.into()),
            ("mamba_n_groups", 1.into()),
            ("mamba_d_state", 256.into()),
            ("mamba_d_conv", 4.into()),
            ("mamba_n_heads", 128.into()),
            ("mamba_d_ssm", 1024.into()),
        ];
        fill(config, values);
    },
    target,
    prediction: None,
};

/// The multipliers of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Factors {
    pub(crate) embedding: f64,
    pub(crate) logits: f64,
    /// Of the input and of the output.
    pub(crate) attention: [f64; 2],
    pub(crate) key: f64,
    /// Of the input and of the output.
    pub(crate) mamba: [f64; 2],
    /// Of z, x, B, C and dt.
    pub(crate) mamba_parts: [f64; 5],
    /// Of the gate and of the result.
    pub(crate) mlp: [f64; 2],
}

impl Factors {
    const NONE: Self = Self {
        embedding: 1.0,
        logits: 1.0,
        attention: [1.0; 2],
        key: 1.0,
        mamba: [1.0; 2],
        mamba_parts: [1.0; 5],
        mlp: [1.0; 2],
    };

    pub(crate) fn read(c: Config<'_>) -> Result<Self> {
        let one = |key| c.float_or(key, 1.0);
        Ok(Self {
            embedding: one("embedding_multiplier")?,
            logits: one("lm_head_multiplier")?,
            attention: [one("attention_in_multiplier")?, one("attention_out_multiplier")?],
            key: one("key_multiplier")?,
            mamba: [one("ssm_in_multiplier")?, one("ssm_out_multiplier")?],
            mamba_parts: multipliers(c, "ssm_multipliers")?,
            mlp: multipliers(c, "mlp_multipliers")?,
        })
    }
}

fn multipliers<const N: usize>(c: Config<'_>, key: &str) -> Result<[f64; N]> {
    let Some(value) = c.get(key) else { return Ok([1.0; N]) };
    let all: Option<Vec<f64>> = value.as_array().and_then(|all| all.iter().map(Json::as_f64).collect());
    let all = all.filter(|all| all.iter().all(|factor| factor.is_finite()));
    let all = all.and_then(|all| <[f64; N]>::try_from(all).ok());
    all.ok_or_else(|| c.bad(key, format!("is not a list of {N} numbers")))
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let (c, norms) = (b.config, Norms::rms(b.config)?);
    let factors = if b.source.layout.folded_factors { Factors::NONE } else { Factors::read(c)? };
    let bias = c.flag_or("attention_bias", false)?;
    let attention = Attention { bias, out_bias: bias, key_factor: factors.key, ..Attention::read(c)? };
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    let bias = c.flag_or("mlp_bias", false)?;
    let ffn = FeedForward { bias, factors: factors.mlp, ..FeedForward::read(c)? };
    let mamba = mamba(c, norms, factors)?;
    let embedding = b.embed(factors.embedding)?;
    let logits = Logits { scale: factors.logits, soft_cap: None };
    stack(b, embedding, norms, "model.final_layernorm", logits, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let h = norms.row(b, x, &format!("{p}input_layernorm"))?;
        let input = b.scale(h, factors.mamba[0]);
        let mixed = mamba.build(b, &format!("{p}mamba."), input)?;
        let mixed = b.scale(mixed, factors.mamba[1]);
        let input = b.scale(h, factors.attention[0]);
        let attended = attention.build(b, i, input, rope, None)?;
        let attended = b.scale(attended, factors.attention[1]);
        let sum = b.add(mixed, attended)?;
        let x = b.add(x, sum)?;
        let h = norms.row(b, x, &format!("{p}pre_ff_layernorm"))?;
        let h = ffn.build(b, &format!("{p}feed_forward."), h)?;
        b.add(x, h)
    })
}

fn mamba(c: Config<'_>, norms: Norms, factors: Factors) -> Result<Mamba2> {
    let (inner, heads) = (c.size("mamba_d_ssm")?, c.size("mamba_n_heads")?);
    if !inner.is_multiple_of(heads) {
        return Err(c.bad("mamba_n_heads", format!("is {heads}, which does not divide {inner}")));
    }
    let before_gate = c.flag_or("mamba_norm_before_gate", true)?;
    let normed = c.flag_or("mamba_rms_norm", false)?;
    Ok(Mamba2 {
        heads,
        head_dim: inner / heads,
        groups: c.size("mamba_n_groups")?,
        state_dim: c.size("mamba_d_state")?,
        kernel: c.size("mamba_d_conv")?,
        conv_bias: c.flag_or("mamba_conv_bias", true)?,
        proj_bias: c.flag_or("mamba_proj_bias", false)? || c.flag_or("projectors_bias", false)?,
        dt_limits: dt_limits(c)?,
        norm: normed.then_some(GatedNorm { eps: norms.eps, before_gate }),
        factors: factors.mamba_parts,
    })
}
