//! Kimi Linear: Kimi Delta Attention (KDA) in most layers, MLA without RoPE in the others, and the
//! MoE of DeepSeek-V3.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::llama::layer;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::grouped::Grouped;
use crate::blocks::kimi_delta::{KimiDelta, kda_layers};
use crate::blocks::latent::Latent;
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, GROUPED, SIGMOID_SCORES};
use crate::gguf::kimi_delta::{KDA_TENSORS, read_delta, write_delta};
use crate::gguf::latent::LATENT;
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::BLOCK_SPARSE;
use crate::gguf::tensor_name::TensorName::{Irregular, Stem};
use crate::gguf::transform::{SPLIT_LATENT, StoredAs, Transform};
use serde_json::{Map, Value as Json};

pub(crate) static KIMI_LINEAR: Architecture = Architecture {
    classes: &[Class::text("KimiLinearForCausalLM", "kimi_linear")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["kimi-linear"],
        written: |_| "kimi-linear",
        claims: |_| true,
        tensors: &[
            KDA_TENSORS,
            BLOCK_SPARSE,
            &[
                Irregular("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
                Stem("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
                Stem("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
                Stem("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
            ],
        ],
        transforms: &[
            SPLIT_LATENT,
            &[StoredAs { tensors: "self_attn.A_log", transform: Transform::DecayRate { column: true } }],
        ],
        rules: &[EXPERTS, EXPERT_WIDTH, SIGMOID_SCORES, GROUPED, LATENT, KDA],
    },
    models: "Kimi Linear",
    specifics: "Kimi Delta Attention (decay per channel), MLA without RoPE, MoE with shared experts",
    defaults,
    target,
    prediction: None,
};

/// Metadata of KDA layers.
const KDA: &[Rule] = &[
    // llama.cpp writes no such key and always renormalizes.
    Rule::flag("expert_weights_norm", "norm_topk_prob", Absent::Means(Constant::Flag(true))),
    Rule::Implied { config: "mla_use_nope", value: Constant::Flag(true) },
    Rule::Code { read: read_delta, write: |w| write_delta(w, &kda_layers(w.config)?) },
];

/// Config keys of Kimi Linear, and the DeepSeek-V3 keys of the same settings.
const ALIASES: [(&str, &str); 6] = [
    ("model_max_length", "max_position_embeddings"),
    ("moe_renormalize", "norm_topk_prob"),
    ("moe_router_activation_func", "scoring_func"),
    ("num_expert_group", "n_group"),
    ("num_shared_experts", "n_shared_experts"),
    ("num_experts", "n_routed_experts"),
];

fn defaults(config: &mut Map<String, Json>) {
    for (from, to) in ALIASES {
        if let Some(value) = config.get(from).cloned()
            && is_missing(config, to)
        {
            config.insert(to.to_owned(), value);
        }
    }
    fill(config, [("tie_word_embeddings", false.into()), ("mla_use_nope", true.into())]);
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    c.require_true("mla_use_nope")?;
    let (norms, is_kda) = (Norms::rms(c)?, kda_layers(c)?);
    let (delta, latent) = (KimiDelta::read(c)?, Latent::read(c)?);
    let experts = Grouped::read(c)?.with_mixtral_names();
    decoder(b, 1.0, norms, |b, i, x| {
        let mixer = |b: &mut Builder<'_>, h| {
            if is_kda[i] { delta.build(b, i, h) } else { latent.build(b, i, h, None) }
        };
        layer(b, i, x, norms, mixer, |b, _, h| experts.build(b, i, h))
    })
}
