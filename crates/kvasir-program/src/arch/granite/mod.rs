//! Granite 4: attention and Mamba-2 layers, a shared MLP with an optional parallel MoE, and four
//! multipliers: of the embedding, of each block's output, of the attention scores and of the
//! logits.
//!
//! `x += r * mixer(norm(x))`, then `x += r * (moe(h) + mlp(h))` with h = norm(x).

pub(crate) mod metadata;

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::granite::metadata::{
    FACTORS, FEED_FORWARD, KINDS, MAMBA, MAMBA_TENSORS, TRANSFORMS, written,
};
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, stack};
use crate::blocks::feed_forward::{FeedForward, activation};
use crate::blocks::mamba2::{GatedNorm, Mamba2, dt_limits};
use crate::blocks::routed::{Routed, by_softmax, named_experts, scores, stacked_experts_in};
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Builder, Logits};
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::HEADS;
use crate::ir::activation::Activation;
use crate::ir::moe::Routing;
use crate::ir::value::ValueId;

pub(crate) static GRANITE: Architecture = Architecture {
    classes: &[Class::text("GraniteMoeHybridForCausalLM", "granitemoehybrid")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["granitehybrid", "granite", "granitemoe"],
        written,
        claims: |_| true,
        tensors: &[MAMBA_TENSORS],
        transforms: &[TRANSFORMS],
        rules: &[HEADS, FACTORS, FEED_FORWARD, KINDS, MAMBA],
    },
    models: "Granite 4, dense Granite 3 as GGUF",
    specifics: "Mamba-2 and attention layers, multipliers of embedding, blocks, scores and logits",
    defaults: |config| {
        let values = [
            ("tie_word_embeddings", false.into()),
            ("mamba_n_groups", 1.into()),
            ("mamba_d_state", 256.into()),
            ("mamba_d_conv", 4.into()),
            ("mamba_expand", 2.into()),
            ("mamba_n_heads", 128.into()),
            ("mamba_conv_bias", true.into()),
            ("mamba_proj_bias", false.into()),
            ("shared_intermediate_size", 1024.into()),
        ];
        fill(config, values);
    },
    target,
    prediction: None,
};

/// Whether a layer has Mamba-2 instead of attention, per layer.
pub(crate) fn recurrent_layers(c: Config<'_>) -> Result<Vec<bool>> {
    let layers = c.number("num_hidden_layers")?;
    let key = if c.get("layer_types").is_some() { "layer_types" } else { "layers_block_type" };
    let listed = c.by_layer_kind(key, layers, [("mamba", true), ("attention", false)])?;
    Ok(listed.unwrap_or_else(|| vec![true; layers]))
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let (c, norms) = (b.config, Norms::rms(b.config)?);
    let factor = c.float_or("residual_multiplier", 1.0)?;
    let logits_scaling = c.opt_positive("logits_scaling")?.unwrap_or(1.0);
    let bias = c.flag_or("attention_bias", false)?;
    let scale = c.float_or("attention_multiplier", 1.0)?;
    let attention = Attention { bias, out_bias: bias, scale, ..Attention::read(c)? };
    let recurrent = recurrent_layers(c)?;
    let mamba = if recurrent.contains(&true) { Some(mamba(c, norms)?) } else { None };
    let rope = match c.text("position_embedding_type")?.unwrap_or("nope") {
        "rope" => Some(attention.rope(b, RopeConfig::read(c)?, 1.0)?),
        "nope" => None,
        other => {
            return Err(c.bad("position_embedding_type", format!("is {other:?}, which is not supported")));
        }
    };
    let feed_forward = FeedForwards::read(c)?;
    let embedding = b.embed(c.float_or("embedding_multiplier", 1.0)?)?;
    let logits = Logits { scale: 1.0 / logits_scaling, soft_cap: None };
    stack(b, embedding, norms, "model.norm", logits, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let h = norms.row(b, x, &format!("{p}input_layernorm"))?;
        let h = match &mamba {
            Some(mamba) if recurrent.get(i) == Some(&true) => mamba.build(b, &format!("{p}mamba."), h)?,
            _ => attention.build(b, i, h, rope, None)?,
        };
        let h = b.scale(h, factor);
        let x = b.add(x, h)?;
        let h = norms.row(b, x, &format!("{p}post_attention_layernorm"))?;
        let h = feed_forward.build(b, &p, h)?;
        let h = b.scale(h, factor);
        b.add(x, h)
    })
}

fn mamba(c: Config<'_>, norms: Norms) -> Result<Mamba2> {
    let heads = c.size("mamba_n_heads")?;
    let inner = c.size("mamba_expand")? * c.size("hidden_size")?;
    if !inner.is_multiple_of(heads) {
        return Err(c.bad("mamba_n_heads", format!("is {heads}, which does not divide {inner}")));
    }
    Ok(Mamba2 {
        heads,
        head_dim: inner / heads,
        groups: c.size("mamba_n_groups")?,
        state_dim: c.size("mamba_d_state")?,
        kernel: c.size("mamba_d_conv")?,
        conv_bias: c.flag_or("mamba_conv_bias", true)?,
        proj_bias: c.flag_or("mamba_proj_bias", false)?,
        dt_limits: dt_limits(c)?,
        norm: Some(GatedNorm { eps: norms.eps, before_gate: false }),
        factors: [1.0; 5],
    })
}

/// The shared MLP of each layer, and the MoE parallel to it.
struct FeedForwards {
    shared: usize,
    activation: Activation,
    moe: Option<Moe>,
}

#[derive(Clone, Copy)]
struct Moe {
    count: usize,
    inner: usize,
    routing: Routing,
}

impl FeedForwards {
    fn read(c: Config<'_>) -> Result<Self> {
        let moe = if c.count("num_local_experts")? > 0 {
            Some(Moe {
                count: c.number("num_local_experts")?,
                inner: c.size("intermediate_size")?,
                // Softmax over the selected scores equals softmax over all scores with
                // renormalization.
                routing: by_softmax(c.size("num_experts_per_tok")?, true),
            })
        } else {
            None
        };
        Ok(Self { shared: c.size("shared_intermediate_size")?, activation: activation(c)?, moe })
    }

    fn build(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<ValueId> {
        let split = b.source.layout.split_feed_forward;
        let plain =
            FeedForward { intermediate: self.shared, activation: self.activation, ..FeedForward::PLAIN };
        let shared = match (split, self.moe) {
            (false, _) => {
                let names = ["", "", "output_linear"];
                FeedForward { fused: Some("input_linear"), names, ..plain }.build(
                    b,
                    &format!("{p}shared_mlp."),
                    x,
                )?
            }
            (true, Some(_)) => plain.build(b, &format!("{p}mlp.shared_experts."), x)?,
            (true, None) => plain.build(b, &format!("{p}mlp."), x)?,
        };
        let Some(moe) = self.moe else { return Ok(shared) };
        let scores = scores(b, x, &format!("{p}block_sparse_moe.router.layer"), moe.count, false)?;
        let routes = b.route(scores, moe.routing)?;
        let experts = if split {
            let (p, names) = (format!("{p}mlp.experts."), Routed::NAMES);
            named_experts(b, &p, moe.count, moe.inner, names, self.activation, false)?
        } else {
            let p = format!("{p}block_sparse_moe.");
            let names = [format!("{p}input_linear.weight"), format!("{p}output_linear.weight")];
            stacked_experts_in(b, names, moe.count, moe.inner, self.activation)?
        };
        let routed = b.mixture(x, routes, experts)?;
        b.add(routed, shared)
    }
}
