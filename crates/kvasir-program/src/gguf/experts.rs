//! Metadata of mixtures of experts (MoE).

use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::writer::{MetadataValue, MetadataWriter};

/// Value of `expert_gating_func` for softmax routing.
const SOFTMAX: u64 = 1;
/// Value of `expert_gating_func` for sigmoid routing.
const SIGMOID: u32 = 2;

/// Numbers of experts, of all and per token.
pub(crate) const EXPERTS: &[Rule] = &[
    Rule::count("expert_count", "num_experts", Absent::Fail),
    Rule::count("expert_used_count", "num_experts_per_tok", Absent::Fail),
];

/// Experts of a width of their own.
pub(crate) const EXPERT_WIDTH: &[Rule] =
    &[Rule::count("expert_feed_forward_length", "moe_intermediate_size", Absent::Fail)];

/// Sigmoid scores.
pub(crate) const SIGMOID_SCORES: &[Rule] = &[Rule::Code { read: read_sigmoid, write: write_sigmoid }];

/// The routing of DeepSeek-V3, with shared experts and dense first layers.
pub(crate) const GROUPED: &[Rule] = &[
    Rule::count("expert_shared_count", "n_shared_experts", Absent::Omit),
    Rule::count("leading_dense_block_count", "first_k_dense_replace", Absent::Omit),
    Rule::count("expert_group_count", "n_group", Absent::Means(Constant::Count(1))),
    Rule::count("expert_group_used_count", "topk_group", Absent::Means(Constant::Count(1))),
    Rule::flag("expert_weights_norm", "norm_topk_prob", Absent::Means(Constant::Flag(false))),
    Rule::float("expert_weights_scale", "routed_scaling_factor", Absent::Means(Constant::Float(1.0))),
    Rule::Implied { config: "moe_layer_freq", value: Constant::Count(1) },
    Rule::Implied { config: "topk_method", value: Constant::Text("noaux_tc") },
];

fn read_sigmoid(r: &mut ConfigReader<'_>) -> Result<()> {
    let key = "expert_gating_func";
    if r.uint(key) == Some(SOFTMAX) {
        return Err(ProgramError::metadata(key, "is softmax routing (DeepSeek-V2), which is not supported"));
    }
    r.set("scoring_func", "sigmoid");
    Ok(())
}

fn write_sigmoid(w: &mut MetadataWriter<'_>) -> Result<()> {
    w.set("expert_gating_func", MetadataValue::Count(SIGMOID));
    Ok(())
}

/// Layers without a router are dense.
pub(crate) fn read_dense_layers(r: &mut ConfigReader<'_>) -> Result<()> {
    let dense = |n: &u64| !r.has(&format!("blk.{n}.ffn_gate_inp.weight"));
    let layers: Vec<u64> = (0..r.blocks()).filter(dense).collect();
    r.set("mlp_only_layers", layers);
    r.set("decoder_sparse_step", 1);
    Ok(())
}
