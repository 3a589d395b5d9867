//! Reference hyper-connections: the weights between residual streams, and weighted sums of streams
//! (`Op::HyperConnection`, `Op::MixStreams`).

use crate::math::{sigmoid, softmax};
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
    let scale_index = |at: usize| (at / streams).min(2);
    for (at, (y, (x, base))) in y.iter_mut().zip(x.iter().zip(weights.base)).enumerate() {
        *y = x * weights.scale[scale_index(at)] + base;
    }
    let (pre, rest) = y.split_at_mut(streams);
    pre.iter_mut().for_each(|w| *w = sigmoid(*w) + eps);
    if form.is_join {
        return;
    }
    let (post, mixing) = rest.split_at_mut(streams);
    post.iter_mut().for_each(|w| *w = 2.0 * sigmoid(*w));
    for row in mixing.chunks_exact_mut(streams) {
        softmax(row, None);
        row.iter_mut().for_each(|w| *w += eps);
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

/// `y[k] = Σ_j weights[j * outputs + k] * x[j]`, over streams of `width` elements.
pub(crate) fn mix_streams(x: &[f32], weights: &[f32], width: usize, y: &mut [f32]) {
    let outputs = y.len() / width;
    for (k, y) in y.chunks_exact_mut(width).enumerate() {
        for (j, x) in x.chunks_exact(width).enumerate() {
            let weight = weights[j * outputs + k];
            y.iter_mut().zip(x).for_each(|(y, x)| *y += weight * x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{HyperWeights, hyper_connection, mix_streams};
    use kvasir_program::{HyperForm, WeightId};

    #[test]
    fn mixing_matrices_become_doubly_stochastic() {
        let form = HyperForm {
            streams: 3,
            iterations: 40,
            is_join: false,
            eps: 0.0,
            scale: WeightId(0),
            base: WeightId(0),
        };
        let x: Vec<f32> = (0..15).map(|n| ((n * 7) % 11) as f32 / 4.0 - 1.0).collect();
        let (base, mut y) = ([0.25; 15], [0.0; 15]);
        hyper_connection(&x, &form, HyperWeights { scale: &[1.0, 0.5, 2.0], base: &base }, &mut y);
        let (weights, mixing) = y.split_at(6);
        assert!(weights[..3].iter().all(|w| (0.0..1.0).contains(w)), "{weights:?}");
        assert!(weights[3..].iter().all(|w| (0.0..2.0).contains(w)), "{weights:?}");
        for n in 0..3 {
            let row: f32 = mixing[3 * n..3 * n + 3].iter().sum();
            let column: f32 = mixing.iter().skip(n).step_by(3).sum();
            assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{mixing:?}");
        }
    }

    #[test]
    fn mixed_streams_are_weighted_sums() {
        let mut y = [0.0; 6];
        mix_streams(&[1.0, 2.0, 10.0, 20.0], &[1.0, 0.0, 0.5, 0.0, 1.0, 0.5], 2, &mut y);
        assert_eq!(y, [1.0, 2.0, 10.0, 20.0, 5.5, 11.0]);
        let mut one = [0.0; 2];
        mix_streams(&[1.0, 2.0, 10.0, 20.0], &[3.0, 0.25], 2, &mut one);
        assert_eq!(one, [5.5, 11.0]);
    }
}
