use super::{FeedForward, named_experts};
use crate::{Groups, Role, Routing, Score, ValueId, builder::Builder, config::Config, error::Result};

/// Experts as DeepSeek-V3 and GLM-4.5 have them: sigmoid shares, a correction that only the choice sees, groups, shared
/// experts, and dense layers in front.
#[derive(Clone, Copy)]
pub(crate) struct Grouped {
    first: usize,
    every: usize,
    experts: usize,
    top_k: usize,
    inner: usize,
    shared: usize,
    groups: Option<Groups>,
    renormalise: bool,
    scale: f64,
    dense: FeedForward,
}

impl Grouped {
    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        for (key, only) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
            if let Some(other) = config.text(key)?.filter(|v| *v != only) {
                return Err(config.bad(key, format!("is {other:?}, only {only:?} is supported")));
            }
        }
        let groups = Groups { count: config.size_or("n_group", 1)?, keep: config.size_or("topk_group", 1)? };
        Ok(Self {
            first: config.count("first_k_dense_replace")?,
            every: config.size_or("moe_layer_freq", 1)?,
            experts: config.number("n_routed_experts")?,
            top_k: config.size("num_experts_per_tok")?,
            inner: config.size("moe_intermediate_size")?,
            shared: config.count("n_shared_experts")?,
            groups: (groups.count > 1).then_some(groups),
            renormalise: config.flag_or("norm_topk_prob", true)?,
            scale: config.float_or("routed_scaling_factor", 1.0)?,
            dense: FeedForward::read(config)?,
        })
    }

    pub(crate) fn build(&self, b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId> {
        let p = format!("model.layers.{layer}.mlp.");
        if layer < self.first || !layer.is_multiple_of(self.every) {
            return self.dense.build(b, &p, x);
        }
        let gate = b.matrix(&format!("{p}gate"), self.experts, b.program.hidden, false, Role::Router)?;
        let scores = b.linear(x, gate)?;
        let correction =
            b.weight(&format!("{p}gate.e_score_correction_bias"), &[self.experts], Role::Router)?;
        let routing = Routing {
            score: Score::Sigmoid,
            top_k: self.top_k,
            correction: Some(correction),
            groups: self.groups,
            renormalise: self.renormalise.then_some(1e-20),
            scale: self.scale as f32,
        };
        let routes = b.route(scores, routing)?;
        let names = ["gate_proj", "up_proj", "down_proj"];
        let p_experts = format!("{p}experts.");
        let experts =
            named_experts(b, &p_experts, self.experts, self.inner, names, self.dense.activation, false)?;
        let y = b.mixture(x, routes, experts)?;
        if self.shared == 0 {
            return Ok(y);
        }
        let shared = FeedForward { intermediate: self.inner * self.shared, ..self.dense };
        let z = shared.build(b, &format!("{p}shared_experts."), x)?;
        b.add(y, z)
    }
}
