//! RMSNorm and LayerNorm of a row, and the residual addition.

use crate::isa::dispatch::per_isa;
use kvasir_program::NormKind;

#[inline(always)]
fn norm_body(
    x: &[f32],
    y: &mut [f32],
    group: usize,
    kind: NormKind,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    let n = group as f32;
    for (x, y) in x.chunks_exact(group).zip(y.chunks_exact_mut(group)) {
        match kind {
            NormKind::Rms | NormKind::RmsPlusOne => {
                let plus = if kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
                let factor = 1.0 / (sum(x, |v| v * v) / n + eps).sqrt();
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = x * factor * (plus + w);
                }
            }
            NormKind::Layer => {
                let mean = sum(x, |v| v) / n;
                let factor = 1.0 / (sum(x, |v| (v - mean) * (v - mean)) / n + eps).sqrt();
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = (x - mean) * factor * w;
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
    norm(x: &[f32], y: &mut [f32], group: usize, kind: NormKind, weight: &[f32], bias: Option<&[f32]>, eps: f32) => norm_body
}

#[inline(always)]
fn add_body(a: &[f32], b: &[f32], y: &mut [f32]) {
    y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (a, b))| *y = a + b);
}

per_isa! {
    /// `y = a + b`, the residual addition.
    add(a: &[f32], b: &[f32], y: &mut [f32]) => add_body
}
