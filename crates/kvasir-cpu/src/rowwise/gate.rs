//! Activation gates of gated MLPs (SwiGLU, GeGLU, clamped SwiGLU), and the `exp` that they share with
//! attention in f32.

use crate::isa::dispatch::per_isa;
use crate::isa::float16::ROUND;
use kvasir_program::Activation;

/// `e^x` to a few ulp, clamped to `[-87, 88]`, with the same bits on every instruction set.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let t = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4f32.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    f32::from_bits(p.to_bits().wrapping_add(t.to_bits().wrapping_shl(23)))
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn gate_body(gate: &[f32], up: &[f32], activation: Activation, y: &mut [f32]) {
    let operands = y.iter_mut().zip(gate.iter().zip(up));
    match activation {
        Activation::Silu => operands.for_each(|(y, (g, u))| *y = g * sigmoid(*g) * u),
        Activation::GeluTanh => operands.for_each(|(y, (g, u))| {
            // 0.5 (1 + tanh z) = sigmoid(2 z)
            let z = 0.797_884_6 * (g + 0.044_715 * g * g * g);
            *y = g * sigmoid(2.0 * z) * u;
        }),
        Activation::ClampedSwiglu { alpha, limit } => operands.for_each(|(y, (g, u))| {
            let (g, u) = (g.min(limit), u.clamp(-limit, limit));
            *y = g * sigmoid(alpha * g) * (u + 1.0);
        }),
    }
}

per_isa! {
    /// `y = act(gate) * up`: SwiGLU, GeGLU (tanh) or clamped SwiGLU.
    gate(gate: &[f32], up: &[f32], activation: Activation, y: &mut [f32]) => gate_body
}
