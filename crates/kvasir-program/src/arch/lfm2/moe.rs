//! LFM2 with a MoE in all but the first layers: sigmoid scores and a bias for the selection.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::lfm2::layers::{DENSE_NAMES, FeedForwards, target};
use crate::arch::lfm2::metadata::{KINDS, TENSORS, TRANSFORMS, common_defaults};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::routed::Routed;
use crate::builder::config::Config;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, SIGMOID_SCORES};
use crate::gguf::heads::HEADS;
use crate::gguf::rule::{Absent, Rule};
use crate::ir::moe::{Routing, Score};

pub(crate) static LFM2_MOE: Architecture = Architecture {
    classes: &[Class::text("Lfm2MoeForCausalLM", "lfm2_moe")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["lfm2moe"],
        written: |_| "lfm2moe",
        claims: |_| true,
        tensors: &[TENSORS],
        transforms: &[TRANSFORMS],
        rules: &[
            HEADS,
            KINDS,
            EXPERTS,
            EXPERT_WIDTH,
            SIGMOID_SCORES,
            &[Rule::count("leading_dense_block_count", "num_dense_layers", Absent::Fail)],
        ],
    },
    models: "LFM2-MoE",
    specifics: "gated short convolutions, MoE with a correction bias",
    defaults: |config| {
        common_defaults(config);
        fill(config, [("num_dense_layers", 2.into()), ("conv_L_cache", 3.into())]);
    },
    target: |b| {
        let dense = FeedForward { names: DENSE_NAMES, ..FeedForward::read(b.config)? };
        let moe = Some((moe(b.config, dense)?, b.config.count("num_dense_layers")?));
        target(b, &FeedForwards { dense, moe })
    },
    prediction: None,
};

fn moe(c: Config<'_>, dense: FeedForward) -> Result<Routed> {
    let routing = Routing {
        score: Score::Sigmoid,
        top_k: c.size("num_experts_per_tok")?,
        correction: None,
        groups: None,
        renormalize: c.flag_or("norm_topk_prob", true)?.then_some(1e-6),
        scale: c.float_or("routed_scaling_factor", 1.0)? as f32,
        token_table: None,
        expert_scale: None,
    };
    Ok(Routed {
        count: c.number("num_experts")?,
        inner: c.size("moe_intermediate_size")?,
        names: DENSE_NAMES,
        activation: dense.activation,
        correction: c.flag_or("use_expert_bias", true)?.then_some("expert_bias"),
        routing,
    })
}
