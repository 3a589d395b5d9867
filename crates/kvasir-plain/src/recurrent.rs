//! Reference recurrences, token by token: short convolution, gated delta rule, selective scan.
//!
//! A state matrix is row-major `S[i][j]`; i is the reduced index. A product
//! `Σ_i S[i][j] x[i]` has four partial sums by i mod 4, fused multiply-adds in ascending i, then
//! `(s0 + s1) + (s2 + s3)`. A decay is a rounded product, an update one fused multiply-add. So
//! results do not depend on how a sequence is divided into steps.

use crate::math::sigmoid;
use kvasir_program::{DeltaForm, ScanForm};

/// Weights of a convolution: `kernel` taps per channel, the oldest token first, and one bias per
/// channel.
#[derive(Clone, Copy)]
pub(crate) struct ConvWeights<'a> {
    pub(crate) weight: &'a [f32],
    pub(crate) bias: Option<&'a [f32]>,
}

/// `y[t] = act(bias + Σ_j weight[j] x[t - kernel + 1 + j])` per channel, over a whole sequence.
pub(crate) fn short_conv(
    x: &[f32],
    weights: ConvWeights<'_>,
    kernel: usize,
    silu: bool,
    width: usize,
    y: &mut [f32],
) {
    for (t, y) in y.chunks_exact_mut(width).enumerate() {
        for (channel, y) in y.iter_mut().enumerate() {
            let weight = &weights.weight[channel * kernel..(channel + 1) * kernel];
            let mut sum = weights.bias.map_or(0.0, |bias| bias[channel]);
            for (j, weight) in weight.iter().enumerate() {
                if let Some(at) = (t + 1 + j).checked_sub(kernel) {
                    sum = weight.mul_add(x[at * width + channel], sum);
                }
            }
            *y = if silu { sum * sigmoid(sum) } else { sum };
        }
    }
}

/// Operands of a gated delta rule, row-major with one row per token.
pub(crate) struct DeltaRows<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
}

/// The gated delta rule over a whole sequence. `decay` and `dt_bias` are weights, one per value
/// head.
pub(crate) fn gated_delta(
    rows: &DeltaRows<'_>,
    form: &DeltaForm,
    decay: &[f32],
    dt_bias: &[f32],
    y: &mut [f32],
) {
    let (keys, values) = (form.key_heads * form.key_dim, form.value_heads * form.value_dim);
    for head in 0..form.value_heads {
        let mut state = vec![0.0; form.key_dim * form.value_dim];
        let key = form.key_head(head) * form.key_dim;
        let rate = form.decay_rate.of(decay[head]);
        for (t, y) in y.chunks_exact_mut(values).enumerate() {
            let of_key = |x: &[f32]| l2_normalize(&x[t * keys + key..][..form.key_dim]);
            let (mut q, k) = (of_key(rows.q), of_key(rows.k));
            let scale = (form.key_dim as f32).sqrt();
            q.iter_mut().for_each(|q| *q /= scale);
            let at = t * form.value_heads + head;
            let g = rate * softplus(rows.decay[at] + dt_bias[head]);
            let beta = sigmoid(rows.beta[at]);
            let v = &rows.v[t * values + head * form.value_dim..][..form.value_dim];
            let decay_factor = g.exp();
            state.iter_mut().for_each(|s| *s *= decay_factor);
            for (j, v) in v.iter().enumerate() {
                let column = || state.iter().skip(j).step_by(form.value_dim);
                let delta = beta * (v - column_dot(column(), &k));
                let cells = state.iter_mut().skip(j).step_by(form.value_dim);
                cells.zip(&k).for_each(|(s, k)| *s = k.mul_add(delta, *s));
                let column = state.iter().skip(j).step_by(form.value_dim);
                y[head * form.value_dim + j] = column_dot(column, &q);
            }
        }
    }
}

/// Operands of a selective scan, row-major with one row per token.
pub(crate) struct ScanRows<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    pub(crate) dt: &'a [f32],
}

/// Weights of a selective scan, one element per head.
#[derive(Clone, Copy)]
pub(crate) struct ScanWeights<'a> {
    pub(crate) decay: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) skip: &'a [f32],
}

/// The selective scan over a whole sequence.
pub(crate) fn selective_scan(rows: &ScanRows<'_>, form: &ScanForm, weights: ScanWeights<'_>, y: &mut [f32]) {
    let (width, groups) = (form.heads * form.head_dim, form.groups * form.state_dim);
    for head in 0..form.heads {
        let mut state = vec![0.0; form.state_dim * form.head_dim];
        let rate = form.decay_rate.of(weights.decay[head]);
        for (t, y) in y.chunks_exact_mut(width).enumerate() {
            let of_group = |x: &'_ [f32]| {
                let start = t * groups + form.group(head) * form.state_dim;
                x[start..start + form.state_dim].to_vec()
            };
            let (b, c) = (of_group(rows.b), of_group(rows.c));
            let dt = softplus(rows.dt[t * form.heads + head] + weights.dt_bias[head]);
            let limits = form.dt_limits;
            let dt = limits.max.map_or(dt, |max| dt.min(max)).max(limits.min);
            let decay_factor = (rate * dt).exp();
            state.iter_mut().for_each(|s| *s *= decay_factor);
            let x = &rows.x[t * width + head * form.head_dim..][..form.head_dim];
            for (j, x) in x.iter().enumerate() {
                let input = dt * x;
                let cells = state.iter_mut().skip(j).step_by(form.head_dim);
                cells.zip(&b).for_each(|(s, b)| *s = b.mul_add(input, *s));
                let column = state.iter().skip(j).step_by(form.head_dim);
                y[head * form.head_dim + j] = weights.skip[head].mul_add(*x, column_dot(column, &c));
            }
        }
    }
}

/// `Σ_i column[i] x[i]`.
fn column_dot<'a>(column: impl Iterator<Item = &'a f32>, x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 4];
    for (i, (s, x)) in column.zip(x).enumerate() {
        sums[i % 4] = s.mul_add(*x, sums[i % 4]);
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// `x / sqrt(Σ x² + 1e-6)`, with 16 partial sums that are reduced pairwise.
fn l2_normalize(x: &[f32]) -> Vec<f32> {
    let mut sums = [0.0f32; 16];
    x.iter().enumerate().for_each(|(i, x)| sums[i % 16] += x * x);
    for half in [8, 4, 2, 1] {
        (0..half).for_each(|i| sums[i] += sums[i + half]);
    }
    let factor = 1.0 / (sums[0] + 1e-6).sqrt();
    x.iter().map(|x| x * factor).collect()
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
