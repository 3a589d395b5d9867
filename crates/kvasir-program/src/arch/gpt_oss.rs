//! gpt-oss: attention sinks, sliding window in every second layer, biases throughout, and a MoE
//! with clamped SwiGLU in MXFP4.

use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::listed_windows;
use crate::blocks::routed::{Routed, by_softmax, named_experts, scores};
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::ir::op::{Activation, Experts};
use crate::ir::weight::{Matrices, Matrix, Role, Vector, WeightId};

pub(crate) fn target(b: &mut Builder<'_>) -> Result<()> {
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
