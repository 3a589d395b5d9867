//! Metadata, tensor names and transforms of Nemotron-H.

use crate::arch::nemotron_h::MixerKind;
use crate::error::{ProgramError, Result};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{self, Irregular, Stem};
use crate::gguf::transform::{StoredAs, Transform};
use crate::gguf::writer::{MetadataValue, MetadataWriter};

pub(crate) const TENSORS: &[TensorName] = &[
    Stem("attn_norm", "norm"),
    Stem("attn_q", "mixer.q_proj"),
    Stem("attn_k", "mixer.k_proj"),
    Stem("attn_v", "mixer.v_proj"),
    Stem("attn_output", "mixer.o_proj"),
    Stem("ssm_in", "mixer.in_proj"),
    Stem("ssm_conv1d", "mixer.conv1d"),
    Irregular("ssm_dt.bias", "mixer.dt_bias"),
    Irregular("ssm_a", "mixer.A_log"),
    Irregular("ssm_d", "mixer.D"),
    Stem("ssm_norm", "mixer.norm"),
    Stem("ssm_out", "mixer.out_proj"),
    Stem("ffn_up", "mixer.up_proj"),
    Stem("ffn_down", "mixer.down_proj"),
    Stem("ffn_gate_inp", "mixer.gate"),
    Irregular("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    Stem("ffn_up_exps", "mixer.experts.{}.up_proj"),
    Stem("ffn_down_exps", "mixer.experts.{}.down_proj"),
    Stem("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    Stem("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];

pub(crate) const TRANSFORMS: &[StoredAs] = &[
    StoredAs { tensors: "mixer.conv1d.weight", transform: Transform::SqueezeConvolution },
    StoredAs { tensors: "mixer.A_log", transform: Transform::DecayRate { column: true } },
    StoredAs { tensors: "mixer.D", transform: Transform::Column },
    StoredAs { tensors: "mixer.norm.weight", transform: Transform::NormGroups { groups: "n_groups" } },
];

/// The KV heads and feed-forward width of a layer determine its mixer; both are 0 for Mamba-2.
pub(crate) const KINDS: &[Rule] = &[Rule::Code { read: read_kinds, write: write_kinds }];

pub(crate) const MAMBA: &[Rule] = &[
    Rule::count("ssm.conv_kernel", "conv_kernel", Absent::Fail),
    Rule::count("ssm.state_size", "ssm_state_size", Absent::Fail),
    Rule::count("ssm.group_count", "n_groups", Absent::Fail),
    Rule::count("ssm.time_step_rank", "mamba_num_heads", Absent::Fail),
    Rule::Code { read: read_inner, write: write_inner },
    Rule::AnyBlockHas { config: "use_conv_bias", tensor: "ssm_conv1d.bias" },
    Rule::Implied { config: "mlp_hidden_act", value: Constant::Text("relu2") },
];

pub(crate) const MOE: &[Rule] = &[
    Rule::count("expert_count", "n_routed_experts", Absent::Omit),
    Rule::count("expert_used_count", "num_experts_per_tok", Absent::Omit),
    Rule::count("expert_feed_forward_length", "moe_intermediate_size", Absent::Omit),
    Rule::count("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size", Absent::Omit),
    Rule::count("expert_shared_count", "n_shared_experts", Absent::Omit),
    Rule::count("expert_group_count", "n_group", Absent::Omit),
    Rule::count("expert_group_used_count", "topk_group", Absent::Omit),
    Rule::flag("expert_weights_norm", "norm_topk_prob", Absent::Omit),
    Rule::float("expert_weights_scale", "routed_scaling_factor", Absent::Omit),
];

const KV_HEADS: &str = "attention.head_count_kv";
const WIDTHS: &str = "feed_forward_length";

fn read_kinds(r: &mut ConfigReader<'_>) -> Result<()> {
    let heads = r.uints(KV_HEADS).ok_or_else(|| ConfigReader::missing(KV_HEADS))?;
    let widths = r.uints(WIDTHS).ok_or_else(|| ConfigReader::missing(WIDTHS))?;
    let equal = |all: &[u64]| {
        let mut used = all.iter().filter(|n| **n > 0);
        let first = used.next().copied();
        used.all(|n| Some(*n) == first).then_some(first)
    };
    let has_router = |layer: usize| r.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
    let kinds = heads.iter().zip(&widths).enumerate().map(|(layer, kind)| match kind {
        (0, 0) => 'M',
        (0, _) if has_router(layer) => 'E',
        (0, _) => '-',
        _ => '*',
    });
    let kinds: String = kinds.collect();
    let mlps: Vec<u64> =
        kinds.chars().zip(&widths).filter(|(kind, _)| *kind == '-').map(|(_, width)| *width).collect();
    let differs =
        |key| ProgramError::metadata(key, "differs between layers of a kind, which is not supported");
    let heads = equal(&heads).ok_or_else(|| differs(KV_HEADS))?;
    let width = equal(&mlps).ok_or_else(|| differs(WIDTHS))?;
    r.set("hybrid_override_pattern", kinds);
    r.config.remove("intermediate_size");
    heads.into_iter().for_each(|heads| r.set("num_key_value_heads", heads));
    width.into_iter().for_each(|width| r.set("intermediate_size", width));
    Ok(())
}

fn write_kinds(w: &mut MetadataWriter<'_>) -> Result<()> {
    let kinds = MixerKind::read_all(w.config)?;
    let heads = w.config.size("num_key_value_heads")?;
    let per_layer = |of: &dyn Fn(MixerKind) -> usize| kinds.iter().map(|kind| of(*kind)).collect::<Vec<_>>();
    let heads = per_layer(&|kind| if kind == MixerKind::Attention { heads } else { 0 });
    let (mlp, moe) = (w.config.count("intermediate_size")?, w.config.count("moe_intermediate_size")?);
    let widths = per_layer(&|kind| match kind {
        MixerKind::Mlp => mlp,
        MixerKind::Moe => moe,
        MixerKind::Mamba | MixerKind::Attention => 0,
    });
    w.counts(KV_HEADS, &heads);
    w.counts(WIDTHS, &widths);
    // Attention has no RoPE.
    w.set("rope.scaling.finetuned", MetadataValue::Flag(false));
    let eps = w.config.opt_float("rms_norm_eps")?;
    eps.into_iter().for_each(|eps| w.float("attention.layer_norm_epsilon", eps));
    Ok(())
}

fn read_inner(r: &mut ConfigReader<'_>) -> Result<()> {
    let (inner, heads) = (r.required_uint("ssm.inner_size")?, r.required_uint("ssm.time_step_rank")?);
    r.set("mamba_head_dim", inner.checked_div(heads).unwrap_or(0));
    Ok(())
}

fn write_inner(w: &mut MetadataWriter<'_>) -> Result<()> {
    let inner = w.config.size("mamba_num_heads")? * w.config.size("mamba_head_dim")?;
    w.count("ssm.inner_size", inner);
    Ok(())
}
