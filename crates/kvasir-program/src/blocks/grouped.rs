//! The MoE of DeepSeek-V3 and GLM-4.5: sigmoid scores, group-limited routing, correction bias,
//! shared experts.

use crate::blocks::feed_forward::FeedForward;
use crate::blocks::routed::Routed;
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::moe::{Groups, Routing, Score};
use crate::ir::value::ValueId;

/// A MoE block with group-limited routing and shared experts; the first layers are dense.
///
/// The correction bias affects the selection of experts, not their weights.
#[derive(Clone, Copy)]
pub(crate) struct Grouped {
    first: usize,
    every: usize,
    experts: Routed,
    shared: usize,
    dense: FeedForward,
    /// Tensor name of the MoE block in a sparse layer.
    block: &'static str,
}

impl Grouped {
    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        config.require_text("scoring_func", "sigmoid")?;
        config.require_text("topk_method", "noaux_tc")?;
        let groups = Groups { count: config.size_or("n_group", 1)?, keep: config.size_or("topk_group", 1)? };
        let (first, every) = (config.count("first_k_dense_replace")?, config.size_or("moe_layer_freq", 1)?);
        let (count, top_k) = (config.number("n_routed_experts")?, config.size("num_experts_per_tok")?);
        let (inner, shared) = (config.size("moe_intermediate_size")?, config.count("n_shared_experts")?);
        let routing = Routing {
            score: Score::Sigmoid,
            top_k,
            correction: None,
            groups: (groups.count > 1).then_some(groups),
            renormalize: config.flag_or("norm_topk_prob", true)?.then_some(1e-20),
            scale: config.float_or("routed_scaling_factor", 1.0)? as f32,
            token_table: None,
            expert_scale: None,
        };
        let dense = FeedForward::read(config)?;
        let (names, activation, correction) = (Routed::NAMES, dense.activation, Some(Routed::CORRECTION));
        let experts = Routed { count, inner, names, activation, correction, routing };
        Ok(Self { first, every, experts, shared, dense, block: "mlp" })
    }

    /// Uses the tensor names of Mixtral: `block_sparse_moe` and `w1`, `w3`, `w2`. Dense layers and
    /// shared experts keep the default names.
    pub(crate) fn with_mixtral_names(self) -> Self {
        let experts = Routed { names: Routed::MIXTRAL_NAMES, ..self.experts };
        Self { experts, block: "block_sparse_moe", ..self }
    }

    /// Sets the activation of all experts and dense layers.
    pub(crate) fn with_activation(self, activation: Activation) -> Self {
        let experts = Routed { activation, ..self.experts };
        Self { experts, dense: FeedForward { activation, ..self.dense }, ..self }
    }

    pub(crate) fn build(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        if layer < self.first || !layer.is_multiple_of(self.every) {
            return self.dense.build(b, &format!("model.layers.{layer}.mlp."), x);
        }
        let p = format!("model.layers.{layer}.{}.", self.block);
        let y = self.experts.build(b, &p, x)?;
        if self.shared == 0 {
            return Ok(y);
        }
        let shared = FeedForward { intermediate: self.experts.inner * self.shared, ..self.dense };
        let z = shared.build(b, &format!("{p}shared_experts."), x)?;
        b.add(y, z)
    }
}
