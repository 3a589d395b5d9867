//! Gemma 4, text only: sliding-window and full-attention layers with different heads, an unweighted
//! norm of V, and a scalar per layer. Optional parts: V = K on full layers, layers that share the K
//! and V of earlier ones, per-layer embeddings, a MoE parallel to the MLP.

pub(crate) mod attention;
pub(crate) mod metadata;
pub(crate) mod mixture;
pub(crate) mod per_layer_input;

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::gemma4::attention::Attention;
use crate::arch::gemma4::metadata::{DOUBLE_WIDE, EXPERTS, HEADS, PER_LAYER_INPUT, ROPES};
use crate::arch::gemma4::mixture::Mixture;
use crate::arch::gemma4::per_layer_input::PerLayerInput;
use crate::blocks::decoder::{Norms, stack};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::{Builder, Logits};
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::{LOGIT_CAP, WINDOW};
use crate::gguf::rule::{Absent, Constant, Rule};
use crate::gguf::tensor_name::TensorName::{Irregular, Outside, Stem};
use crate::gguf::windows::{read_pattern, write_pattern};
use serde_json::{Map, Value as Json, json};

pub(crate) static GEMMA4: Architecture = Architecture {
    classes: &[
        Class::text("Gemma4ForCausalLM", "gemma4_text"),
        Class::multimodal(
            "Gemma4ForConditionalGeneration",
            "gemma4_text",
            &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "multi_modal_projector."],
        ),
    ],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["gemma4"],
        written: |_| "gemma4",
        claims: |_| true,
        tensors: &[&[
            Stem("post_attention_norm", "post_attention_layernorm"),
            Stem("ffn_norm", "pre_feedforward_layernorm"),
            Stem("post_ffw_norm", "post_feedforward_layernorm"),
            Irregular("layer_output_scale.weight", "layer_scalar"),
            Outside("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
            Outside("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
            Outside("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
            Stem("inp_gate", "per_layer_input_gate"),
            Stem("proj", "per_layer_projection"),
            Stem("post_norm", "post_per_layer_input_norm"),
            Stem("ffn_gate_inp", "router.proj"),
            Irregular("ffn_gate_inp.scale", "router.scale"),
            Irregular("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
            Irregular("ffn_down_exps.weight", "experts.down_proj"),
            Irregular("ffn_down_exps.scale", "router.per_expert_scale"),
            Stem("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
            Stem("post_ffw_norm_1", "post_feedforward_layernorm_1"),
            Stem("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ]],
        transforms: &[],
        rules: &[
            WINDOW,
            LOGIT_CAP,
            &[
                Rule::Code { read: read_pattern::<6>, write: write_pattern::<6> },
                Rule::count("attention.shared_kv_layers", "num_kv_shared_layers", Absent::Omit),
                Rule::Implied { config: "hidden_activation", value: Constant::Text("gelu_pytorch_tanh") },
            ],
            HEADS,
            ROPES,
            DOUBLE_WIDE,
            PER_LAYER_INPUT,
            EXPERTS,
        ],
    },
    models: "Gemma 4 (text)",
    specifics: "sliding-window and full layers with different heads, shared K/V, per-layer embeddings, MoE parallel to the MLP",
    defaults,
    target,
    prediction: None,
};

fn defaults(config: &mut Map<String, Json>) {
    let values = [
        ("hidden_activation", "gelu_pytorch_tanh".into()),
        ("sliding_window", 512.into()),
        ("head_dim", 256.into()),
        ("global_head_dim", 512.into()),
        ("num_attention_heads", 8.into()),
        ("num_key_value_heads", 4.into()),
        ("vocab_size", 262_144.into()),
        ("max_position_embeddings", 131_072.into()),
    ];
    fill(config, values);
    if is_missing(config, "rope_parameters") {
        let ropes = json!({
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
        });
        config.insert("rope_parameters".to_owned(), ropes);
    }
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let (c, norms) = (b.config, Norms::rms(b.config)?);
    if c.text("use_bidirectional_attention")?.is_some_and(|kind| kind == "all") {
        return Err(c.bad("use_bidirectional_attention", "is \"all\": such a model cannot generate"));
    }
    let mut attention = Attention::new(b, norms)?;
    let ffn = FeedForward::read(c)?;
    let wide = if c.flag_or("use_double_wide_mlp", false)? { 2 } else { 1 };
    let mixture = if c.flag_or("enable_moe_block", false)? { Some(Mixture::read(c, norms)?) } else { None };
    let embedding = b.embed((b.program.hidden as f64).sqrt())?;
    let inputs = PerLayerInput::build(b, norms, embedding)?;
    let logits = Logits { scale: 1.0, soft_cap: c.opt_positive("final_logit_softcapping")? };
    stack(b, embedding, norms, "model.norm", logits, |b, i, x| {
        let p = format!("model.layers.{i}.");
        let h = norms.row(b, x, &format!("{p}input_layernorm"))?;
        let h = attention.build(b, i, h)?;
        let h = norms.row(b, h, &format!("{p}post_attention_layernorm"))?;
        let x = b.add(x, h)?;
        let h = norms.row(b, x, &format!("{p}pre_feedforward_layernorm"))?;
        let width_factor = if attention.shares_kv(i) { wide } else { 1 };
        let dense = FeedForward { intermediate: ffn.intermediate * width_factor, ..ffn };
        let h = dense.build(b, &format!("{p}mlp."), h)?;
        let h = match &mixture {
            Some(mixture) => mixture.build_with_dense(b, &p, x, h)?,
            None => h,
        };
        let h = norms.row(b, h, &format!("{p}post_feedforward_layernorm"))?;
        let x = b.add(x, h)?;
        let x = match &inputs {
            Some(inputs) => inputs.add(b, i, x)?,
            None => x,
        };
        b.scale_by(x, &format!("{p}layer_scalar"))
    })
}
