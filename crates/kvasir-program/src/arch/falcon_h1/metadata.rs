//! Metadata, tensor names and transforms of Falcon-H1. GGUF has no keys for its multipliers: they
//! are folded into the weights.

use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular, Outside, Stem};
use crate::gguf::transform::{StoredAs, Transform};

pub(crate) const TENSORS: &[TensorName] = &[
    Outside("output_norm.weight", "model.final_layernorm.weight"),
    // llama.cpp reads and writes this tensor without the suffix `.weight`.
    Irregular("ffn_norm", "pre_ff_layernorm.weight"),
    Stem("ffn_gate", "feed_forward.gate_proj"),
    Stem("ffn_up", "feed_forward.up_proj"),
    Stem("ffn_down", "feed_forward.down_proj"),
    Stem("ssm_in", "mamba.in_proj"),
    Stem("ssm_conv1d", "mamba.conv1d"),
    Irregular("ssm_dt.bias", "mamba.dt_bias"),
    Irregular("ssm_a", "mamba.A_log"),
    Irregular("ssm_d", "mamba.D"),
    Stem("ssm_norm", "mamba.norm"),
    Stem("ssm_out", "mamba.out_proj"),
];

pub(crate) const TRANSFORMS: &[StoredAs] = &[
    StoredAs { tensors: "mamba.conv1d.weight", transform: Transform::SqueezeConvolution },
    StoredAs { tensors: "mamba.A_log", transform: Transform::DecayRate { column: true } },
    StoredAs { tensors: "mamba.D", transform: Transform::Column },
    StoredAs { tensors: "mamba.norm.weight", transform: Transform::NormGroups { groups: "mamba_n_groups" } },
    StoredAs { tensors: "embed_tokens.weight", transform: Transform::FoldFactors },
    StoredAs { tensors: "lm_head.weight", transform: Transform::FoldFactors },
    StoredAs { tensors: "self_attn.", transform: Transform::FoldFactors },
    StoredAs { tensors: "feed_forward.", transform: Transform::FoldFactors },
    StoredAs { tensors: "mamba.in_proj.", transform: Transform::FoldFactors },
    StoredAs { tensors: "mamba.out_proj.", transform: Transform::FoldFactors },
];

pub(crate) const MAMBA: &[Rule] = &[
    Rule::count("ssm.conv_kernel", "mamba_d_conv", Absent::Fail),
    Rule::count("ssm.state_size", "mamba_d_state", Absent::Fail),
    Rule::count("ssm.group_count", "mamba_n_groups", Absent::Fail),
    Rule::count("ssm.inner_size", "mamba_d_ssm", Absent::Fail),
    Rule::count("ssm.time_step_rank", "mamba_n_heads", Absent::Fail),
    Rule::HasTensor { config: "mamba_rms_norm", tensor: "blk.0.ssm_norm.weight" },
    Rule::HasTensor { config: "mamba_conv_bias", tensor: "blk.0.ssm_conv1d.bias" },
    Rule::Implied { config: "mamba_norm_before_gate", value: Constant::Flag(false) },
];
