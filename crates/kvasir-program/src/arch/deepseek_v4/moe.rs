//! The MoE of DeepSeek-V4. Router scores are sqrt(softplus(x)); the first layers take the experts of
//! a token from a table by token id (hash routing).

use crate::blocks::feed_forward::{FeedForward, activation};
use crate::blocks::routed::{Routed, named_experts, scores};
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::moe::{Routing, Score};
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

/// The MoE block of every layer.
pub(crate) struct Moe {
    count: usize,
    inner: usize,
    /// Total width of the shared experts; 0 if there are none.
    shared: usize,
    /// Number of layers, from the first, that route by token id.
    hash_layers: usize,
    activation: Activation,
    routing: Routing,
}

impl Moe {
    pub(crate) fn read(c: Config<'_>) -> Result<Self> {
        c.require_text("scoring_func", "sqrtsoftplus")?;
        let routing = Routing {
            score: Score::SqrtSoftplus,
            top_k: c.size("num_experts_per_tok")?,
            correction: None,
            groups: None,
            renormalize: c.flag_or("norm_topk_prob", true)?.then_some(1e-20),
            scale: c.float_or("routed_scaling_factor", 1.0)? as f32,
            token_table: None,
            expert_scale: None,
        };
        let inner = c.size("moe_intermediate_size")?;
        Ok(Self {
            count: c.number("n_routed_experts")?,
            inner,
            shared: inner.saturating_mul(c.count("n_shared_experts")?),
            hash_layers: c.count("num_hash_layers")?,
            activation: match c.opt_positive("swiglu_limit")? {
                Some(limit) => Activation::LimitedSwiglu { limit: limit as f32 },
                None => activation(c)?,
            },
            routing,
        })
    }

    pub(crate) fn build(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{layer}.ffn.");
        let scores = scores(b, x, &format!("{p}gate"), self.count, false)?;
        let routing = if layer < self.hash_layers {
            let shape = [b.program.vocab, self.routing.top_k];
            let table = b.weight(&format!("{p}gate.tid2eid"), &shape, Role::Router)?;
            Routing { token_table: Some(table), ..self.routing }
        } else {
            let correction = b.weight(&format!("{p}gate.bias"), &[self.count], Role::Router)?;
            Routing { correction: Some(correction), ..self.routing }
        };
        let routes = b.route(scores, routing)?;
        let names = format!("{p}experts.");
        let experts =
            named_experts(b, &names, self.count, self.inner, Routed::MIXTRAL_NAMES, self.activation, false)?;
        let y = b.mixture(x, routes, experts)?;
        if self.shared == 0 {
            return Ok(y);
        }
        let shared = FeedForward {
            intermediate: self.shared,
            activation: self.activation,
            names: Routed::MIXTRAL_NAMES,
            ..FeedForward::PLAIN
        };
        let z = shared.build(b, &format!("{p}shared_experts."), x)?;
        b.add(y, z)
    }
}
