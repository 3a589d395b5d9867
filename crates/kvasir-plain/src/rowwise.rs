//! Ops that compute each row of their result from the same row of their operands: norms, rotary
//! embeddings, activations, sums, and copies of parts of a row.

use crate::elementwise::elementwise;
use crate::math::{dot, rotate_pairs, turns};
use crate::mixture::gated;
use crate::run::Run;
use crate::streams::{HyperWeights, hyper_connection, mix_streams};
use kvasir_program::{NormKind, Op, Pairs, Rope};

impl<'a> Run<'a> {
    /// Computes a row-wise op into `y`, whose rows have `width` elements.
    pub(crate) fn compute_rows(&self, op: &Op, y: &mut [f32], width: usize) {
        let w = self.job.weights;
        match op {
            Op::Norm { x, kind, weight, bias, eps, groups, .. } => {
                let group = width / groups;
                let parts = y.chunks_exact_mut(group).zip(self.value(*x).chunks_exact(group));
                for (at, (y, x)) in parts.enumerate() {
                    // One weight per element of the row, or one per element of a group that all
                    // groups share.
                    let of_group = |weight: &'a [f32]| {
                        if weight.len() == group { weight } else { &weight[at % groups * group..][..group] }
                    };
                    let weight = weight.map(|id| of_group(w.get(id)));
                    norm(y, x, *kind, weight, bias.map(|b| w.get(b)), *eps);
                }
            }
            Op::Slice { x, groups, start, width: part, .. } => {
                let x = self.value(*x).chunks_exact(self.width(*x) / groups);
                for (y, x) in y.chunks_exact_mut(*part).zip(x) {
                    y.copy_from_slice(&x[*start..start + part]);
                }
            }
            Op::Concat { a, b, groups, .. } => {
                let (a_width, b_width) = (self.width(*a) / groups, self.width(*b) / groups);
                let parts = self.value(*a).chunks_exact(a_width).zip(self.value(*b).chunks_exact(b_width));
                for (y, (a, b)) in y.chunks_exact_mut(a_width + b_width).zip(parts) {
                    y[..a_width].copy_from_slice(a);
                    y[a_width..].copy_from_slice(b);
                }
            }
            Op::Rotary { x, groups, start, rope, pairs, .. } => {
                y.copy_from_slice(self.value(*x));
                let rope = &self.job.program.ropes[rope.0 as usize];
                self.rotate(y, width / groups, *groups, *start, rope, *pairs);
            }
            Op::Gate { gate, up, activation, .. } => {
                // A gate of one element applies to the whole row.
                let repeat = width / self.width(*gate).max(1);
                let gates = self.value(*gate).iter().flat_map(|gate| std::iter::repeat_n(gate, repeat));
                let operands = gates.zip(self.value(*up));
                y.iter_mut().zip(operands).for_each(|(y, (gate, up))| *y = gated(*gate, *up, *activation));
            }
            Op::Scale { x, factor, by, .. } => {
                let factor = factor * by.map_or(1.0, |by| w.get(by)[0]);
                y.iter_mut().zip(self.value(*x)).for_each(|(y, x)| *y = x * factor);
            }
            Op::Add { a, b, .. } => {
                let operands = self.value(*a).iter().zip(self.value(*b));
                y.iter_mut().zip(operands).for_each(|(y, (a, b))| *y = a + b);
            }
            Op::Elementwise { x, function, .. } => {
                y.iter_mut().zip(self.value(*x)).for_each(|(y, x)| *y = elementwise(*x, *function));
            }
            Op::GroupDot { a, b, groups, .. } => {
                let width = self.width(*a) / groups;
                let operands = self.value(*a).chunks_exact(width).zip(self.value(*b).chunks_exact(width));
                y.iter_mut().zip(operands).for_each(|(y, (a, b))| *y = dot(a, b));
            }
            Op::HyperConnection { x, form, .. } => {
                let weights = HyperWeights { scale: w.get(form.scale), base: w.get(form.base) };
                let rows = y.chunks_exact_mut(width).zip(self.rows(*x));
                rows.for_each(|(y, x)| hyper_connection(x, form, weights, y));
            }
            Op::MixStreams { x, weights, streams, .. } => {
                let stream = self.width(*x) / streams;
                for (y, (x, weights)) in y.chunks_exact_mut(width).zip(self.rows(*x).zip(self.rows(*weights)))
                {
                    mix_streams(x, weights, stream, y);
                }
            }
            _ => {}
        }
    }

    /// RoPE in place. `group` is the width of a head, `start` its first rotated element.
    fn rotate(&self, y: &mut [f32], group: usize, groups: usize, start: usize, rope: &Rope, pairs: Pairs) {
        let positions = self.job.plan.positions.iter().zip(&self.row_of);
        for (heads, (position, row)) in y.chunks_exact_mut(group * groups).zip(positions) {
            let turns = turns(rope, *position, self.job.final_lens[*row]);
            for head in heads.chunks_exact_mut(group) {
                rotate_pairs(&mut head[start..start + rope.dims()], &turns, pairs);
            }
        }
    }
}

/// RMSNorm or LayerNorm of one group.
fn norm(y: &mut [f32], x: &[f32], kind: NormKind, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let weights = (0..x.len()).map(|i| weight.map_or(1.0, |weight| weight[i]));
    let n = x.len() as f32;
    match kind {
        NormKind::Rms | NormKind::RmsPlusOne => {
            let plus = if kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
            let factor = 1.0 / (dot(x, x) / n + eps).sqrt();
            y.iter_mut().zip(x).zip(weights).for_each(|((y, x), w)| *y = x * factor * (plus + w));
        }
        NormKind::Layer => {
            let mean = x.iter().sum::<f32>() / n;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
            let factor = 1.0 / (variance + eps).sqrt();
            y.iter_mut().zip(x).zip(weights).for_each(|((y, x), w)| *y = (x - mean) * factor * w);
            bias.into_iter().for_each(|bias| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
    }
}
