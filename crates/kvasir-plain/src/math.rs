//! Scalar kernels: dot product, axpy, softmax, top-k, RoPE. The order of summation depends on lengths
//! only, not on the batch.

use kvasir_program::{Pairs, Rope};

/// Independent accumulators of a dot product, so that the compiler can use SIMD.
const LANES: usize = 16;

/// Σ a·b over slices of equal length.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// axpy: y += factor * x.
pub(crate) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}

/// Softmax in place. `sink` (attention sink) joins the denominator and yields no weight.
pub(crate) fn softmax(scores: &mut [f32], sink: Option<f32>) {
    let largest = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|s| *s = (*s - largest).exp());
    let sum = scores.iter().sum::<f32>() + sink.map_or(0.0, |s| (s - largest).exp());
    scores.iter_mut().for_each(|s| *s /= sum);
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// The error function in f64: the Taylor series for |x| < 3, else the continued fraction of erfc.
fn erf(x: f64) -> f64 {
    let z = x.abs();
    let value = if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..40).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
        1.0 - (-z * z).exp() / fraction / std::f64::consts::PI.sqrt()
    };
    value.copysign(x)
}

/// Exact GELU: `x / 2 * (1 + erf(x / sqrt 2))`.
pub(crate) fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// Top-k: the indices of the `k` largest values, in descending order; the lower index first among
/// equals.
pub(crate) fn largest(values: &[f32], k: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    ids.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b)));
    ids.truncate(k);
    ids
}

/// Cosine and sine of each rotated pair at a position.
pub(crate) fn turns(rope: &Rope, position: u32, final_len: u32) -> Vec<(f32, f32)> {
    rope.frequencies(final_len).iter().map(|frequency| rope.turn(*frequency, position)).collect()
}

/// RoPE in place over the rotated elements of one head.
pub(crate) fn rotate_pairs(x: &mut [f32], turns: &[(f32, f32)], pairs: Pairs) {
    for (i, (cos, sin)) in turns.iter().enumerate() {
        let (first, second) = match pairs {
            Pairs::Half => (i, i + turns.len()),
            Pairs::Interleaved => (2 * i, 2 * i + 1),
        };
        let (a, b) = (x[first], x[second]);
        x[first] = a * cos - b * sin;
        x[second] = b * cos + a * sin;
    }
}

#[cfg(test)]
mod tests {
    use super::gelu;

    #[test]
    fn gelu_matches_published_values() {
        for (x, expected) in [
            (0.0, 0.0),
            (1.0, 0.841_344_8),
            (-1.0, -0.158_655_26),
            (3.0, 2.995_950_2),
            (-3.0, -0.004_049_694),
            (5.0, 4.999_998_6),
            (-5.0, -1.433_258e-6),
        ] {
            let error = (gelu(x) - expected).abs();
            assert!(error <= 1e-6 * expected.abs().max(1e-3), "{x}: {}", gelu(x));
        }
    }
}
