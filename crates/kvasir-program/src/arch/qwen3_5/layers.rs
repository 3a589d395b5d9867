//! The layers of Qwen3.5 and Qwen3-Next, from their config.

use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder, prediction};
use crate::blocks::feed_forward::{FeedForward, activation};
use crate::blocks::gated_delta::GatedDeltaNet;
use crate::blocks::routed::{Routed, by_softmax, named_experts, scores, stacked_experts};
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::moe::Routing;
use crate::ir::op::NormKind;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// The blocks of a model of the family; a layer has a Gated DeltaNet or attention.
pub(crate) struct Layers {
    pub(crate) norms: Norms,
    pub(crate) attention: Attention,
    delta: GatedDeltaNet,
    rope: RopeId,
    /// Whether each layer is a Gated DeltaNet.
    recurrent: Vec<bool>,
    feed_forward: FeedForwards,
}

/// The feed-forward blocks of the layers.
pub(crate) enum FeedForwards {
    Dense(FeedForward),
    Moe(SharedMoe),
}

/// A MoE with a shared expert, whose output is gated by one number per token.
pub(crate) struct SharedMoe {
    count: usize,
    inner: usize,
    routing: Routing,
    /// Width of the shared expert; 0 if there is none.
    shared: usize,
    activation: Activation,
    /// Layers that have a dense block instead.
    dense_layers: Vec<bool>,
    dense: Option<FeedForward>,
}

impl SharedMoe {
    /// Reads the config. `renormalize`: the weights of the selected experts are divided by their
    /// sum.
    pub(crate) fn read(c: Config<'_>, renormalize: bool) -> Result<Self> {
        let activation = activation(c)?;
        let layers = c.number("num_hidden_layers")?;
        let (sparse_step, dense_only) = (c.size_or("decoder_sparse_step", 1)?, c.counts("mlp_only_layers")?);
        let is_dense = |n: usize| dense_only.contains(&n) || !(n + 1).is_multiple_of(sparse_step);
        let dense_layers: Vec<bool> = (0..layers).map(is_dense).collect();
        let dense = if dense_layers.contains(&true) { Some(FeedForward::read(c)?) } else { None };
        Ok(Self {
            count: c.number("num_experts")?,
            inner: c.size("moe_intermediate_size")?,
            routing: by_softmax(c.size("num_experts_per_tok")?, renormalize),
            shared: c.count("shared_expert_intermediate_size")?,
            activation,
            dense_layers,
            dense,
        })
    }

    fn build(&self, b: &mut Builder<'_>, layer: usize, p: &str, x: ValueId) -> Result<ValueId> {
        if let (Some(true), Some(dense)) = (self.dense_layers.get(layer), &self.dense) {
            return dense.build(b, p, x);
        }
        let scores = scores(b, x, &format!("{p}gate"), self.count, false)?;
        let routes = b.route(scores, self.routing)?;
        let names = format!("{p}experts.");
        // Published checkpoints stack the experts; quantized checkpoints have one tensor per
        // expert.
        let experts = if b.source.has_prefix(&format!("{names}0.")) {
            named_experts(b, &names, self.count, self.inner, Routed::NAMES, self.activation, false)?
        } else {
            stacked_experts(b, &names, self.count, self.inner, self.activation)?
        };
        let y = b.mixture(x, routes, experts)?;
        if self.shared == 0 {
            return Ok(y);
        }
        let shared =
            FeedForward { intermediate: self.shared, activation: self.activation, ..FeedForward::PLAIN };
        let z = shared.build(b, &format!("{p}shared_expert."), x)?;
        let gate = b.matrix(&format!("{p}shared_expert_gate"), 1, b.program.hidden, false, Role::Router)?;
        let gate = b.linear(x, gate)?;
        let z = b.gate(gate, z, Activation::Sigmoid)?;
        b.add(y, z)
    }
}

impl Layers {
    /// Reads the config. `by_key_head`: the projection rows of recurrent layers are ordered by key
    /// head.
    pub(crate) fn new(b: &mut Builder<'_>, by_key_head: bool, feed_forward: FeedForwards) -> Result<Self> {
        let c = b.config;
        let kind = if b.source.layout.norm_plus_one { NormKind::Rms } else { NormKind::RmsPlusOne };
        let norms = Norms { kind, ..Norms::rms(c)? };
        let bias = c.flag_or("attention_bias", false)?;
        let gated = c.flag_or("attn_output_gate", true)?;
        let attention = Attention { bias, out_bias: bias, norms: Some(norms), gated, ..Attention::read(c)? };
        let rope = attention.rope(b, RopeConfig::read(c)?, 0.25)?;
        let delta = GatedDeltaNet::read(c, by_key_head)?;
        Ok(Self { norms, attention, delta, rope, recurrent: recurrent_layers(c)?, feed_forward })
    }

    /// Builds the target.
    pub(crate) fn target(&self, b: &mut Builder<'_>) -> Result<()> {
        decoder(b, 1.0, self.norms, |b, i, x| self.layer(b, i, x))
    }

    /// Builds the prediction layer, which has attention.
    pub(crate) fn prediction(&self, b: &mut Builder<'_>) -> Result<()> {
        prediction(b, self.norms, |b, i, x| self.layer(b, i, x))
    }

    fn layer(&self, b: &mut Builder<'_>, i: usize, x: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{i}.");
        let h = self.norms.row(b, x, &format!("{p}input_layernorm"))?;
        let h = self.mixer(b, i, h)?;
        let x = b.add(x, h)?;
        let h = self.norms.row(b, x, &format!("{p}post_attention_layernorm"))?;
        let h = self.feed_forward(b, i, h)?;
        b.add(x, h)
    }

    /// Builds the Gated DeltaNet or the attention of a layer.
    pub(crate) fn mixer(&self, b: &mut Builder<'_>, i: usize, h: ValueId) -> Result<ValueId> {
        if self.recurrent.get(i).copied().unwrap_or(false) {
            self.delta.build(b, i, h)
        } else {
            self.attention.build(b, i, h, self.rope, None)
        }
    }

    /// Builds the feed-forward block of a layer.
    pub(crate) fn feed_forward(&self, b: &mut Builder<'_>, i: usize, h: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{i}.mlp.");
        match &self.feed_forward {
            FeedForwards::Dense(dense) => dense.build(b, &p, h),
            FeedForwards::Moe(moe) => moe.build(b, i, &p, h),
        }
    }
}

/// Whether each layer is recurrent: as `layer_types` says, else all layers but every
/// `full_attention_interval`-th.
pub(crate) fn recurrent_layers(c: Config<'_>) -> Result<Vec<bool>> {
    let layers = c.number("num_hidden_layers")?;
    let kinds = [("linear_attention", true), ("full_attention", false)];
    if let Some(listed) = c.by_layer_kind("layer_types", layers, kinds)? {
        return Ok(listed);
    }
    let interval = c.size_or("full_attention_interval", 4)?;
    Ok((1..=layers).map(|n| !n.is_multiple_of(interval)).collect())
}
