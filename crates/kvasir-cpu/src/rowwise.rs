//! Row-wise f32 kernels: norms, activation gates, residual addition and rotary embeddings.
//!
//! Every function works on one row with a fixed order of operations, so results depend neither on
//! the batch nor on the instruction set. Knows no tensor, op or thread; builds on `isa`.

use crate::isa::dispatch::per_isa;
use crate::isa::float16::ROUND;
use kvasir_program::{Activation, Elementwise, NormKind, Pairs};

#[inline(always)]
fn norm_body(
    x: &[f32],
    y: &mut [f32],
    group: usize,
    kind: NormKind,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
) {
    let n = group as f32;
    for (at, (x, y)) in x.chunks_exact(group).zip(y.chunks_exact_mut(group)).enumerate() {
        // One weight per element of the row, or one per element of a group that all groups share.
        let weight = weight.map(|w| if w.len() > group { &w[at * group..][..group] } else { w });
        match kind {
            NormKind::Rms | NormKind::RmsPlusOne => {
                let plus = if kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
                let factor = 1.0 / (sum(x, |v| v * v) / n + eps).sqrt();
                let Some(weight) = weight else {
                    y.iter_mut().zip(x).for_each(|(y, x)| *y = x * factor);
                    continue;
                };
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = x * factor * (plus + w);
                }
            }
            NormKind::Layer => {
                let mean = sum(x, |v| v) / n;
                let factor = 1.0 / (sum(x, |v| (v - mean) * (v - mean)) / n + eps).sqrt();
                y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - mean) * factor);
                if let Some(weight) = weight {
                    y.iter_mut().zip(weight).for_each(|(y, w)| *y *= w);
                }
                if let Some(bias) = bias {
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            }
        }
    }
}

/// Sum of `f(x)` in 16 lanes, reduced pairwise by halves at the end. The order is part of the
/// numerics contract.
#[inline(always)]
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for part in whole {
        for (lane, v) in lanes.iter_mut().zip(part) {
            *lane += f(*v);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane += f(*v);
    }
    by_halves(lanes)
}

/// Kept out of line: inlined, compilers split the loop before it to match this one.
#[inline(never)]
fn by_halves(mut lanes: [f32; 16]) -> f32 {
    for n in [8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(n);
        low.iter_mut().zip(high).for_each(|(a, b)| *a += *b);
    }
    lanes[0]
}

per_isa! {
    /// RMSNorm or LayerNorm over each group of `group` numbers of a row.
    norm(x: &[f32], y: &mut [f32], group: usize, kind: NormKind, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) => norm_body
}

#[inline(always)]
fn scale_body(x: &[f32], factor: f32, y: &mut [f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x * factor);
}

per_isa! {
    /// `y = x * factor`.
    scale(x: &[f32], factor: f32, y: &mut [f32]) => scale_body
}

#[inline(always)]
fn add_body(a: &[f32], b: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (a, b))| *y = a + b);
}

per_isa! {
    /// `y = a + b`, the residual addition.
    add(a: &[f32], b: &[f32], y: &mut [f32]) => add_body
}

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
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `ln(1 + e^x)` to a few ulp, as `max(x, 0) + ln(1 + u)` with `u = e^-|x|`. The logarithm is
/// `2 atanh(u / (2 + u))`, by its series.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let u = exp(-x.abs());
    let s = u / (2.0 + u);
    let square = s * s;
    let mut p = 1.0 / 15.0f32;
    for c in [1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0f32] {
        p = p.mul_add(square, c);
    }
    let s = 2.0 * s;
    x.max(0.0) + (p * square).mul_add(s, s)
}

/// `Σ x²` in the order of [`sum`].
#[inline(always)]
pub(crate) fn sum_of_squares(x: &[f32]) -> f32 {
    sum(x, |v| v * v)
}

/// `a . b` with fused multiply-adds, in the order of [`sum`].
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let ((a_whole, a_rest), (b_whole, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a_whole.iter().zip(b_whole) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = a.mul_add(*b, *lane);
    }
    by_halves(lanes)
}

#[inline(always)]
fn group_dot_body(a: &[f32], b: &[f32], group: usize, y: &mut [f32]) {
    let groups = a.chunks_exact(group).zip(b.chunks_exact(group));
    y.iter_mut().zip(groups).for_each(|(y, (a, b))| *y = dot(a, b));
}

per_isa! {
    /// Dot products of the groups of `a` and `b`, which have `group` elements each.
    group_dot(a: &[f32], b: &[f32], group: usize, y: &mut [f32]) => group_dot_body
}

/// Exact GELU: `x / 2 * (1 + erf(x / sqrt 2))`.
///
/// `erfc(z) = t exp(-z² + P(t))` with `t = 1 / (1 + z / 2)`: the Chebyshev fit of Numerical
/// Recipes, with a relative error of at most 1.2e-7.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    const P: [f32; 10] = [
        0.170_872_76,
        -0.822_152_26,
        1.488_515_9,
        -1.135_204,
        0.278_868_08,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_95,
        1.000_023_7,
        -1.265_512_2,
    ];
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.5, 1.0);
    let mut p = P[0];
    for c in &P[1..] {
        p = p.mul_add(t, *c);
    }
    let tail = 0.5 * t * exp((-z).mul_add(z, p));
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// GELU in the tanh approximation: `x / 2 * (1 + tanh z)`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // 0.5 (1 + tanh z) = sigmoid(2 z)
    let z = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    x * sigmoid(2.0 * z)
}

#[inline(always)]
fn activate_body(gate: &[f32], up: &[f32], activation: Activation, y: &mut [f32]) {
    let operands = y.iter_mut().zip(gate.iter().zip(up));
    match activation {
        Activation::Silu => operands.for_each(|(y, (g, u))| *y = g * sigmoid(*g) * u),
        Activation::GeluTanh => operands.for_each(|(y, (g, u))| *y = gelu_tanh(*g) * u),
        Activation::Sigmoid => operands.for_each(|(y, (g, u))| *y = sigmoid(*g) * u),
        Activation::Identity => operands.for_each(|(y, (g, u))| *y = g * u),
        Activation::Relu => operands.for_each(|(y, (g, u))| *y = g.max(0.0) * u),
        Activation::Gelu => operands.for_each(|(y, (g, u))| *y = gelu(*g) * u),
        Activation::ClampedSwiglu { alpha, limit } => operands.for_each(|(y, (g, u))| {
            let (g, u) = (g.min(limit), u.clamp(-limit, limit));
            *y = g * sigmoid(alpha * g) * (u + 1.0);
        }),
        Activation::LimitedSwiglu { limit } => operands.for_each(|(y, (g, u))| {
            let g = g.min(limit);
            *y = g * sigmoid(g) * u.clamp(-limit, limit);
        }),
    }
}

per_isa! {
    /// `y = act(gate) * up`: SwiGLU, GeGLU, clamped SwiGLU, or an output gate.
    activate(gate: &[f32], up: &[f32], activation: Activation, y: &mut [f32]) => activate_body
}

#[inline(always)]
fn activate_scalar_gate_body(gate: f32, up: &[f32], activation: Activation, y: &mut [f32]) {
    let gates = [gate; 16];
    for (y, up) in y.chunks_mut(16).zip(up.chunks(16)) {
        activate_body(&gates[..up.len()], up, activation, y);
    }
}

per_isa! {
    /// `y = act(gate) * up` with one gate element for the whole row.
    activate_scalar_gate(gate: f32, up: &[f32], activation: Activation, y: &mut [f32]) => activate_scalar_gate_body
}

#[inline(always)]
fn elementwise_body(x: &[f32], function: Elementwise, y: &mut [f32]) {
    let pairs = y.iter_mut().zip(x);
    match function {
        Elementwise::Gelu => pairs.for_each(|(y, x)| *y = gelu(*x)),
        Elementwise::GeluTanh => pairs.for_each(|(y, x)| *y = gelu_tanh(*x)),
        Elementwise::Relu => pairs.for_each(|(y, x)| *y = x.max(0.0)),
        Elementwise::Silu => pairs.for_each(|(y, x)| *y = x * sigmoid(*x)),
        Elementwise::Tanh => pairs.for_each(|(y, x)| *y = x.tanh()),
        Elementwise::Sigmoid => pairs.for_each(|(y, x)| *y = sigmoid(*x)),
        Elementwise::SignedSqrt => pairs.for_each(|(y, x)| {
            *y = if *x == 0.0 { 0.0 } else { x.abs().max(1e-6).sqrt().copysign(*x) };
        }),
    }
}

per_isa! {
    /// `y = function(x)`, element by element.
    elementwise(x: &[f32], function: Elementwise, y: &mut [f32]) => elementwise_body
}

/// Which elements of a row RoPE rotates: in each head of `group` numbers, from `start` on, paired
/// as `pairs` says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotaryPart {
    pub(crate) group: usize,
    pub(crate) start: usize,
    pub(crate) pairs: Pairs,
}

#[inline(always)]
fn rotate_body(y: &mut [f32], rotary: RotaryPart, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in y.chunks_exact_mut(rotary.group) {
        let part = &mut head[rotary.start..rotary.start + 2 * half];
        match rotary.pairs {
            Pairs::Half => {
                let (first, second) = part.split_at_mut(half);
                for ((a, b), (c, s)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
                    (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
                }
            }
            Pairs::Interleaved => {
                for (pair, (c, s)) in part.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
                    *pair = [pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s];
                }
            }
        }
    }
}

per_isa! {
    /// Applies RoPE to every head of a row: `(a, b) = (a cos - b sin, b cos + a sin)`.
    rotate(y: &mut [f32], rotary: RotaryPart, cos: &[f32], sin: &[f32]) => rotate_body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::Isa;

    #[test]
    fn gelu_matches_published_values_on_detected_and_portable_isa() {
        let x = [0.0, 1.0, -1.0, 3.0, -3.0, 5.0, -5.0, 40.0, -40.0];
        let expected = [
            0.0,
            0.841_344_8,
            -0.158_655_26,
            2.995_950_2,
            -0.004_049_694,
            4.999_998_6,
            -1.433_258e-6,
            40.0,
            0.0,
        ];
        let (mut detected, mut portable) = ([0f32; 9], [0f32; 9]);
        elementwise(Isa::detect(), &x, Elementwise::Gelu, &mut detected);
        elementwise(Isa::PORTABLE, &x, Elementwise::Gelu, &mut portable);
        assert_eq!(detected, portable);
        for (found, expected) in detected.into_iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-6 * f32::abs(expected).max(0.01),
                "found {found}, expected {expected}"
            );
        }
    }
}
