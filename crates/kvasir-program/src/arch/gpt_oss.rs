//! gpt-oss: attention sinks, sliding window in every second layer, biases throughout, and a MoE
//! with clamped SwiGLU in MXFP4.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::listed_windows;
use crate::blocks::routed::{Routed, by_softmax, named_experts, scores};
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::EXPERTS;
use crate::gguf::heads::{HEADS, WINDOW};
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::{Absent, Constant, Rule, write_nothing};
use crate::gguf::tensor_name::TensorName::{Irregular, Stem};
use crate::gguf::transform::{StoredAs, Transform};
use crate::gguf::windows::read_pattern;
use crate::ir::activation::Activation;
use crate::ir::moe::Experts;
use crate::ir::weight::{Matrices, Matrix, Role, Vector, WeightId};
use serde_json::{Map, Value as Json, json};

pub(crate) static GPT_OSS: Architecture = Architecture {
    classes: &[Class::text("GptOssForCausalLM", "gpt_oss")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["gpt-oss"],
        written: |_| "gpt-oss",
        claims: |_| true,
        tensors: &[&[
            Stem("post_attention_norm", "post_attention_layernorm"),
            Stem("ffn_gate_inp", "mlp.router"),
            Irregular("attn_sinks.weight", "self_attn.sinks"),
        ]],
        transforms: &[&[StoredAs { tensors: ".mlp.experts.", transform: Transform::SplitExperts }]],
        rules: &[
            HEADS,
            WINDOW,
            EXPERTS,
            &[
                Rule::count("expert_feed_forward_length", "intermediate_size", Absent::Omit),
                Rule::Code { read: read_pattern::<2>, write: write_nothing },
                Rule::Code { read: read_scaling, write: write_nothing },
                Rule::Implied { config: "attention_bias", value: Constant::Flag(true) },
                Rule::Implied { config: "swiglu_limit", value: Constant::Float(7.0) },
            ],
        ],
    },
    models: "gpt-oss",
    specifics: "attention sinks, alternating windows, MXFP4 experts, YaRN",
    defaults,
    target,
    prediction: None,
};

/// For this family a null `rope_scaling` counts as absent, too.
fn defaults(config: &mut Map<String, Json>) {
    if ["rope_parameters", "rope_scaling"].iter().all(|key| is_missing(config, key)) {
        let yarn = json!({
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096,
        });
        config.insert("rope_scaling".to_owned(), yarn);
    }
    fill(config, [("rope_theta", 150_000.0.into()), ("rms_norm_eps", 1e-5.into())]);
    fill(config, [("sliding_window", 128.into()), ("head_dim", 64.into())]);
}

/// A file without scaling has none: an absent key would mean YaRN. YaRN here is without truncation.
fn read_scaling(r: &mut ConfigReader<'_>) -> Result<()> {
    match r.config.get("rope_scaling").and_then(|scaling| scaling.get("rope_type")).and_then(Json::as_str) {
        None => r.set_scaling("rope_type", "default"),
        Some("yarn") => r.set_scaling("truncate", false),
        Some(_) => {}
    }
    Ok(())
}

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (bias, norms) = (c.flag_or("attention_bias", true)?, Norms::rms(c)?);
    let attention = Attention { bias, out_bias: bias, sinks: true, ..Attention::read(c)? };
    let windows = listed_windows(c, |layer| layer.is_multiple_of(2))?;
    let (count, inner) = (c.number("num_local_experts")?, c.size("intermediate_size")?);
    let limit = c.opt_positive("swiglu_limit")?.unwrap_or(7.0) as f32;
    let alpha = c.float_or("swiglu_alpha", 1.702)? as f32;
    let activation = Activation::ClampedSwiglu { alpha, limit };
    // Softmax over the chosen scores only equals softmax over all scores with renormalization.
    let routing = by_softmax(c.size("num_experts_per_tok")?, true);
    let rope = attention.rope(b, RopeConfig::read(c)?, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        let window = windows.get(i).copied().flatten();
        let attend = |b: &mut Builder<'_>, h| attention.build(b, i, h, rope, window);
        layer(b, i, x, norms, attend, |b, p, h| {
            let scores = scores(b, h, &format!("{p}router"), count, true)?;
            let routes = b.route(scores, routing)?;
            let p = format!("{p}experts.");
            let experts = if b.source.layout.split_gate_up {
                named_experts(b, &p, count, inner, Routed::NAMES, activation, true)?
            } else {
                stacked(b, &p, count, inner, activation)?
            };
            b.mixture(h, routes, experts)
        })
    })
}

/// All experts stacked in one tensor: [experts, inputs, outputs] as floats, [experts, outputs,
/// inputs] in MXFP4.
///
/// The outputs of `gate_up_proj` are interleaved: gate, up, gate, up.
fn stacked(
    b: &mut Builder<'_>,
    p: &str,
    count: usize,
    inner: usize,
    activation: Activation,
) -> Result<Experts> {
    let (hidden, both) = (b.program.hidden, 2 * inner);
    let packed = b.source.has(&format!("{p}gate_up_proj_blocks"));
    let shape = |outputs, inputs| if packed { [count, outputs, inputs] } else { [count, inputs, outputs] };
    let gate_up = b.weight(&format!("{p}gate_up_proj"), &shape(both, hidden), Role::Experts)?;
    let gate_up_bias = b.weight(&format!("{p}gate_up_proj_bias"), &[count, both], Role::Bias)?;
    let down = b.weight(&format!("{p}down_proj"), &shape(hidden, inner), Role::Experts)?;
    let down_bias = b.weight(&format!("{p}down_proj_bias"), &[count, hidden], Role::Bias)?;
    let part = |weight: WeightId, bias: WeightId, outputs: usize, inputs: usize, turn: usize, of: usize| {
        // Strides of one output and one input in the stored matrix; `of` is the number of
        // interleaved parts, `turn` the part.
        let (output, input) = if packed { (inputs, 1) } else { (1, outputs * of) };
        let bias = Vector { weight: bias, offset: turn, stride: of };
        let first = Matrix {
            weight,
            offset: turn * output,
            outputs,
            inputs,
            output_stride: of * output,
            input_stride: input,
            bias: Some(bias),
        };
        let (offset_stride, bias_stride) = (outputs * of * inputs, outputs * of);
        Matrices { count, first, weight_stride: 0, offset_stride, bias_stride }
    };
    Ok(Experts {
        gate: part(gate_up, gate_up_bias, inner, hidden, 0, 2),
        up: part(gate_up, gate_up_bias, inner, hidden, 1, 2),
        down: part(down, down_bias, hidden, inner, 0, 1),
        activation,
        first: 0,
    })
}
