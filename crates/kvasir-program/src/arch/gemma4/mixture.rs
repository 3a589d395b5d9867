//! The MoE of Gemma 4, parallel to the dense MLP. With r the residual before the feed-forward
//! block:
//!
//! ```text
//! dense = norm_1(mlp(norm(r)))
//! moe   = norm_2(experts(pre_norm_2(r)))
//! x     = r + post_norm(dense + moe)
//! ```
//!
//! The router reads r: `softmax(proj · (rms(r) * scale) / sqrt(hidden))`, top-k, renormalized, then
//! times the scale of each expert.

use crate::blocks::decoder::Norms;
use crate::blocks::feed_forward::activation;
use crate::blocks::routed::{by_softmax, scores, stacked_experts};
use crate::builder::Builder;
use crate::builder::config::Config;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::moe::Routing;
use crate::ir::op::NormKind;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;

pub(crate) struct Mixture {
    count: usize,
    inner: usize,
    top_k: usize,
    activation: Activation,
    norms: Norms,
}

impl Mixture {
    pub(crate) fn read(c: Config<'_>, norms: Norms) -> Result<Self> {
        let (count, inner) = (c.number("num_experts")?, c.size("moe_intermediate_size")?);
        Ok(Self { count, inner, top_k: c.size("num_experts_per_tok")?, activation: activation(c)?, norms })
    }

    /// Builds `norm_1(dense) + moe` from the output of the dense MLP. `p` is the layer's prefix;
    /// router and experts read `residual`.
    pub(crate) fn build_with_dense(
        &self,
        b: &mut Builder<'_>,
        p: &str,
        residual: ValueId,
        dense: ValueId,
    ) -> Result<ValueId> {
        let (norms, hidden) = (self.norms, b.program.hidden as f64);
        let dense = norms.row(b, dense, &format!("{p}post_feedforward_layernorm_1"))?;
        let scaled = b.norm_by(residual, NormKind::Rms, &format!("{p}router.scale"), 1, norms.eps)?;
        let scores = scores(b, scaled, &format!("{p}router.proj"), self.count, false)?;
        let scores = b.scale(scores, hidden.powf(-0.5));
        let scales = b.weight(&format!("{p}router.per_expert_scale"), &[self.count], Role::Router)?;
        let routes =
            b.route(scores, Routing { expert_scale: Some(scales), ..by_softmax(self.top_k, true) })?;
        let h = norms.row(b, residual, &format!("{p}pre_feedforward_layernorm_2"))?;
        let experts = stacked_experts(b, &format!("{p}experts."), self.count, self.inner, self.activation)?;
        let y = b.mixture(h, routes, experts)?;
        let y = norms.row(b, y, &format!("{p}post_feedforward_layernorm_2"))?;
        b.add(dense, y)
    }
}
