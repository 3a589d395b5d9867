//! Hyper-connections: the weights between the residual streams of one token, and weighted sums of
//! streams.
//!
//! Sums add the streams in ascending order, so results depend neither on the batch nor on the
//! instruction set.

use crate::isa::dispatch::per_isa;
use crate::rowwise::{exp, sigmoid};
use kvasir_program::HyperForm;

/// Scales and biases of a hyper-connection.
#[derive(Clone, Copy)]
pub(crate) struct HyperWeights<'a> {
    pub(crate) scale: &'a [f32],
    pub(crate) base: &'a [f32],
}

/// Computes the weights of one token (pre, post, mixing matrix) from their projections `x`, as
/// [`HyperForm`] defines.
pub(crate) fn hyper_connection(x: &[f32], form: &HyperForm, weights: HyperWeights<'_>, y: &mut [f32]) {
    let (streams, eps) = (form.streams, form.eps);
    let parts = [0..streams, streams..2 * streams, 2 * streams..y.len()];
    // A join has one scale, so that `zip` visits only the first part (pre).
    for (part, scale) in parts.into_iter().zip(weights.scale) {
        for at in part {
            y[at] = x[at] * scale + weights.base[at];
        }
    }
    let (pre, rest) = y.split_at_mut(streams);
    pre.iter_mut().for_each(|w| *w = sigmoid(*w) + eps);
    if form.is_join {
        return;
    }
    let (post, mixing) = rest.split_at_mut(streams);
    post.iter_mut().for_each(|w| *w = 2.0 * sigmoid(*w));
    for row in mixing.chunks_exact_mut(streams) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|w| *w = exp(*w - largest));
        let sum = row.iter().sum::<f32>();
        row.iter_mut().for_each(|w| *w = *w / sum + eps);
    }
    divide_columns(mixing, streams, eps);
    for _ in 1..form.iterations {
        for row in mixing.chunks_exact_mut(streams) {
            let sum = row.iter().sum::<f32>() + eps;
            row.iter_mut().for_each(|w| *w /= sum);
        }
        divide_columns(mixing, streams, eps);
    }
}

/// Divides each column by its sum plus `eps`.
fn divide_columns(matrix: &mut [f32], columns: usize, eps: f32) {
    for column in 0..columns {
        let sum = matrix.iter().skip(column).step_by(columns).sum::<f32>() + eps;
        matrix.iter_mut().skip(column).step_by(columns).for_each(|w| *w /= sum);
    }
}

#[inline(always)]
fn mix_streams_body(x: &[f32], weights: &[f32], width: usize, y: &mut [f32]) {
    let outputs = y.len() / width;
    for (k, y) in y.chunks_exact_mut(width).enumerate() {
        y.fill(0.0);
        for (j, x) in x.chunks_exact(width).enumerate() {
            let weight = weights[j * outputs + k];
            y.iter_mut().zip(x).for_each(|(y, x)| *y = weight.mul_add(*x, *y));
        }
    }
}

per_isa! {
    /// `y[k] = Σ_j weights[j * outputs + k] * x[j]`, over streams of `width` elements.
    mix_streams(x: &[f32], weights: &[f32], width: usize, y: &mut [f32]) => mix_streams_body
}
